#include "tests/cpu/kv/cache_cases.h"

#include <algorithm>
#include <random>

namespace cuflash::test {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

// Types and head sizes, and how many rows of queries times heads: what chooses the kernel.
struct Family {
  DType dtype;
  int64_t dim_qk, dim_v;
  int64_t largest_group, longest_q;
  bool v_in_k, aligned, options;
};
constexpr Family kFamilies[] = {
    {DType::bf16, 64, 64, 8, 2, false, true, false},    // 16 rows, keys shared by warps
    {DType::bf16, 64, 64, 32, 1, false, true, true},    // and 32 rows
    {DType::f16, 40, 56, 4, 24, false, true, false},    // several tiles of 64 rows, incomplete rows
    {DType::f32, 64, 32, 5, 3, false, true, false},     //
    {DType::f32, 19, 33, 20, 2, false, false, true},    // any alignment
    {DType::bf16, 96, 64, 16, 1, true, true, false},    // values are columns of keys
    {DType::bf16, 45, 33, 3, 4, true, false, true},     // and do not begin on 16 bytes
    {DType::f64, 24, 32, 4, 4, false, true, false},     //
    {DType::bf16, 256, 256, 4, 2, false, true, false},  //
    {DType::bf16, 576, 512, 16, 1, true, true, false},  //
};
constexpr Family kPrefillFamilies[] = {
    {DType::bf16, 64, 64, 4, 125, false, true, false},
    {DType::f16, 40, 56, 6, 100, false, true, false},
    {DType::bf16, 64, 48, 4, 90, true, true, false},
};

void draw_rotary(Draw& draw, const Family& f, CacheCase& c) {
  if (!draw.one_in(2)) return;
  c.rotary = 2 * draw.between(1, f.dim_qk / 2);
  if (f.aligned && draw.one_in(2)) c.rotary = std::max<int64_t>(16, c.rotary / 16 * 16);
  c.interleaved = draw.one_in(2), c.one_position = draw.one_in(3), c.rotary_f32 = draw.one_in(2);
}

void draw_window(Draw& draw, CacheCase& c) {
  if (draw.one_in(2)) c.window_right = draw.one_in(2) ? 0 : draw.between(0, 9);
  if (draw.one_in(3)) c.window_left = draw.one_in(3) ? 0 : draw.between(0, 150);
}

void draw_rows(Draw& draw, const Family& f, CacheCase& c) {
  const int64_t batch = draw.between(1, 3), longest = draw.of({20, 100, 300});
  const bool appends = draw.one_in(2), pads = draw.one_in(3);
  c.packed_q = draw.one_in(3), c.packed_new = draw.one_in(3);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t rows = draw.one_in(8) ? 0 : draw.between(0, longest);
    c.rows.push_back(static_cast<int32_t>(rows));
    if (pads) c.pad.push_back(static_cast<int32_t>(draw.between(0, std::min<int64_t>(rows, 70))));
    if (appends) c.len_new.push_back(static_cast<int32_t>(draw.one_in(4) ? 0 : draw.between(1, draw.of({1, 5, 70}))));
    const int64_t keys = rows + (appends ? c.len_new.back() : 0) - (pads ? c.pad.back() : 0);
    // Queries without a position cannot be rotated.
    const int64_t longest_q = c.rotary ? std::min(keys, f.longest_q) : f.longest_q;
    c.len_q.push_back(static_cast<int32_t>(draw.one_in(6) ? 0 : draw.between(0, longest_q)));
    c.room = std::max(c.room, rows + (appends ? c.len_new.back() : 0));
  }
  c.room += draw.between(0, 40);
  c.page_size = draw.of<int64_t>({0, 0, 1, 3, 16, 64, 100});
  c.has_entries = draw.one_in(2);
}

}  // namespace

CacheCase random_cache_case(uint64_t seed, uint64_t index) {
  Draw draw(seed * 7919 + index);
  const Family& f = kFamilies[index % std::size(kFamilies)];
  CacheCase c;
  c.seed = seed + index;
  c.dtype = f.dtype, c.dim_qk = f.dim_qk, c.dim_v = f.dim_v, c.v_in_k = f.v_in_k, c.aligned = f.aligned;
  if (f.v_in_k) c.v_column = draw.of<int64_t>({0, 8, f.dim_qk - f.dim_v});
  c.heads_k = draw.between(1, 2), c.group = draw.one_in(2) ? f.largest_group : draw.between(1, f.largest_group);
  draw_rotary(draw, f, c);
  draw_rows(draw, f, c);
  draw_window(draw, c);
  c.o_is_f32 = f.dtype != DType::f64 && draw.one_in(3), c.has_lse = !draw.one_in(4);
  c.sink = draw.one_in(3);
  c.num_splits = draw.of<int32_t>({0, 0, 1, 2, 3, 5});
  if (f.options) c.softcap = 3, c.alibi = true;
  c.scale = 1.5 / static_cast<double>(f.dim_qk);
  return c;
}

CacheCase random_prefill_case(uint64_t seed, uint64_t index) {
  Draw draw(seed * 7919 + index);
  const Family& f = kPrefillFamilies[index % std::size(kPrefillFamilies)];
  CacheCase c;
  c.seed = seed + index;
  c.dtype = f.dtype, c.dim_qk = f.dim_qk, c.dim_v = f.dim_v, c.v_in_k = f.v_in_k;
  if (f.v_in_k) c.v_column = draw.of<int64_t>({0, 8, f.dim_qk - f.dim_v});
  c.heads_k = draw.between(1, 2), c.group = f.largest_group;
  draw_rotary(draw, f, c);
  c.packed_q = draw.one_in(3), c.packed_new = draw.one_in(3);
  // More keys would take further kernels.
  const int64_t batch = draw.between(1, 3), longest = draw.of({20, 100, f.dtype == DType::bf16 ? 280 : 100});
  const bool appends = draw.one_in(2);
  for (int64_t b = 0; b < batch; ++b) {
    // Packed sequences are long on average; of dense ones only the longest counts.
    const bool is_long = b == 0 || c.packed_q;
    int64_t queries = is_long ? draw.between(70, f.longest_q) : draw.one_in(3) ? 0 : draw.between(0, f.longest_q);
    if (c.packed_q && b > 0 && draw.one_in(3)) queries = 65;
    const int64_t added = !appends || draw.one_in(4) ? 0 : draw.of<int64_t>({1, 17, queries});
    int64_t rows = draw.one_in(8) ? 0 : draw.between(0, longest);
    if (c.rotary) rows = std::max(rows, queries - added);  // queries without a position cannot be rotated
    c.len_q.push_back(static_cast<int32_t>(queries)), c.rows.push_back(static_cast<int32_t>(rows));
    if (appends) c.len_new.push_back(static_cast<int32_t>(added));
    c.room = std::max(c.room, rows + added);
  }
  c.room += draw.between(1, 40);
  c.page_size = draw.one_in(2) ? 0 : draw.of<int64_t>({8, 16, 48, 64, 128, 256});
  c.has_entries = draw.one_in(3);
  draw_window(draw, c);
  c.o_is_f32 = draw.one_in(3), c.has_lse = !draw.one_in(4), c.sink = draw.one_in(3);
  c.scale = 1.5 / static_cast<double>(f.dim_qk);
  return c;
}

}  // namespace cuflash::test
