// Draws a call over a cache. The first outcome of every choice is the simplest.
#include <algorithm>

#include "check/cases/cache_case.h"
#include "check/cases/draw.h"
#include "dtype.h"

namespace cuflash::check {
namespace {

constexpr int64_t kLongest = 700, kVeryLong = 1500;                              // enough for several splits
constexpr int64_t kLargestCache = 100'000;                                       // elements
constexpr uint32_t kManyRowsOnCuda = 24, kPlainOnCuda = 6, kPrefillOnCuda = 10;  // one in this many

void draw_shape(CacheCase& c, Choices& choose, const Limits& limits) {
  Case& p = c.plain;
  p.heads_k = choose.one_of<int64_t>({1, 1, 2, 3});
  p.heads_q = p.heads_k * choose.one_of<int64_t>({1, 1, 2, 3, 4, 5, 6, 7, 8, 16});
  p.batch = choose.one_of<int64_t>({1, 1, 2, 3, 4, 5, 6});
  draw_head_sizes(p, choose, limits);
  if (const bool drawn = choose.chance(12); limits.kernel_set ? limits.kernel_set->v_in_k : drawn) {
    c.v_in_k = true;
    if (limits.head_sizes.empty() && !limits.kernel_set && choose.chance(3)) p.dim = 576, p.dim_v = 512;
    p.dim_v = std::min(p.dim, p.dim_v);
    if (choose.chance(4)) c.v_column = choose.between(0, p.dim - p.dim_v);
  }
  const int64_t most = limits.work / (p.heads_q * std::max(p.dim, p.dim_v) * 4);
  p.len_q = choose.chance(4) ? choose.between(1, 70) : choose.one_of<int64_t>({1, 1, 1, 1, 2, 3, 4, 5, 8, 16});
  p.len_q = std::clamp<int64_t>(p.len_q, 1, std::max<int64_t>(1, most));
  if (choose.chance(60)) p.len_q = 0;
  if (choose.chance(120)) p.batch = 0;
}

void draw_16_bit_type(Case& p, Choices& choose, const Limits& limits) {
  const DType drawn = choose.one_of<DType>({DType::bf16, DType::f16});
  p.dtype = p.o_dtype = p.sink_dtype = limits.kernel_set ? limits.kernel_set->dtype : drawn;
}

// Aligned rows of a 16-bit type, several tiles for each of many heads: only such calls get large tiles on a GPU.
void draw_many_rows(CacheCase& c, Choices& choose, const Limits& limits) {
  Case& p = c.plain;
  draw_16_bit_type(p, choose, limits);
  const int64_t group = choose.one_of<int64_t>({1, 2, 4, 8});
  p.heads_k = choose.between(8, 12), p.heads_q = p.heads_k * group;
  p.batch = choose.between(9, 12);
  draw_head_sizes(p, choose, limits);
  p.dim = in_vectors(p.dim), p.dim_v = in_vectors(p.dim_v);
  p.len_q = (choose.between(65, 300) + group - 1) / group;
}

// Aligned rows of a 16-bit type and so many queries that a GPU may have its forward kernels attend the cache.
void draw_prefill(CacheCase& c, Choices& choose, const Limits& limits) {
  Case& p = c.plain;
  draw_16_bit_type(p, choose, limits);
  p.heads_k = choose.one_of<int64_t>({1, 1, 2}), p.heads_q = p.heads_k * choose.one_of<int64_t>({4, 1, 2, 3, 8});
  p.batch = choose.between(1, 4);
  draw_head_sizes(p, choose, limits);
  p.dim = in_vectors(p.dim), p.dim_v = in_vectors(p.dim_v);
  if (const bool drawn = choose.chance(8); drawn && !limits.kernel_set)
    c.v_in_k = true, p.dim_v = std::min(p.dim, p.dim_v);
  p.len_q = choose.between(65, p.heads_q == p.heads_k ? 400 : 200);
}

// One decode step of sequences that differ only in the length of their keys, which has its own kernels on a GPU.
void make_plain(CacheCase& c, Choices& choose, const Limits& limits) {
  Case& p = c.plain;
  draw_16_bit_type(p, choose, limits);
  p.dim = in_vectors(p.dim), p.dim_v = in_vectors(p.dim_v);
  if (c.v_in_k) p.dim_v = std::min(p.dim, p.dim_v), c.v_column = std::min(c.v_column, p.dim - p.dim_v);
}

void draw_queries(Case& c, Choices& choose) {
  c.mode = choose.one_of<Mode>({Mode::dense, Mode::dense, Mode::padded, Mode::packed});
  if (c.mode == Mode::dense) return;
  c.lengths_q = draw_lengths(choose, c.batch, c.len_q);
  if (c.mode == Mode::padded) return;
  c.slack_q = choose.chance(3) ? choose.between(1, 5) : 0;
  c.give_max_seqlen = choose.chance(2) && c.len_q > 0;  // a bound of 0 means that the library finds it
  if (c.give_max_seqlen) return;
  c.len_q = c.lengths_q.empty() ? 0 : *std::max_element(c.lengths_q.begin(), c.lengths_q.end());
}

// prefill: often as many new rows as there are queries.
void draw_new_rows(CacheCase& c, Choices& choose, bool prefill) {
  c.new_rows = choose.one_of<NewRows>(
      {NewRows::none, NewRows::dense, NewRows::dense, NewRows::none, NewRows::padded, NewRows::packed});
  if (c.new_rows == NewRows::none) return;
  c.len_new = choose.one_of<int64_t>({1, 1, 1, 2, 3, 4, 5, 15, 16, 17, 20, 0});
  if (prefill && choose.chance(2)) c.len_new = c.plain.len_q;
  if (c.new_rows == NewRows::dense) return;
  c.lengths_new = draw_lengths(choose, c.plain.batch, c.len_new);
  if (c.new_rows == NewRows::padded) return;
  c.slack_new = choose.chance(3) ? choose.between(1, 5) : 0;
  c.give_max_new = choose.chance(2) && c.len_new > 0;
  if (!c.give_max_new)
    c.len_new = c.lengths_new.empty() ? 0 : *std::max_element(c.lengths_new.begin(), c.lengths_new.end());
}

void draw_rotary(CacheCase& c, Choices& choose) {
  const int64_t dim = c.plain.dim;
  if (!choose.chance(2) || dim < 2) return;
  c.rotary = choose.chance(2) ? Rotary::interleaved : Rotary::halves;
  c.rotary_dim = choose.chance(3) ? 2 * choose.between(1, dim / 2) : dim / 2 * 2;
  c.one_position = choose.chance(6);
  c.rotary_dtype = choose.chance(2) ? DType::f32 : c.plain.dtype;
  c.spare_positions = choose.chance(2) ? choose.between(1, 30) : 0;
  c.rotary_gap = choose.chance(4) ? choose.between(1, 5) : 0;
}

// Any small number, one at the edge of a tile, or one at the edge of a page.
int64_t draw_rows(const CacheCase& c, Choices& choose, int64_t most) {
  const uint32_t kind = choose.below(4);
  const int64_t page = std::max<int64_t>(1, c.page_size);
  int64_t length = 0;
  if (kind < 2) length = choose.between(0, kind == 0 ? std::min<int64_t>(most, 40) : most);
  else if (kind == 2)
    length = choose.one_of<int64_t>({1, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 255, 256, 257, 511, 512, 513, 640});
  else length = page * choose.between(1, std::max<int64_t>(1, most / page)) + choose.between(-1, 1);
  return std::clamp<int64_t>(length, 0, most);
}

int64_t max_keys(const Case& p, Choices& choose, const Limits& limits) {
  const int64_t work = std::max<int64_t>(1, p.batch * p.heads_q * std::max<int64_t>(1, p.len_q));
  const int64_t longest = choose.chance(8) ? kVeryLong : kLongest;
  return std::clamp<int64_t>(4 * limits.work / (work * std::max(p.dim, p.dim_v)), 8, longest);
}

void draw_lengths_of_keys(CacheCase& c, Choices& choose, int64_t most, bool may_pad) {
  Case& p = c.plain;
  const bool padded = may_pad && choose.chance(4);
  for (int64_t b = 0; b < p.batch; ++b) {
    int64_t rows = draw_rows(c, choose, most);
    const int64_t pad = padded ? choose.between(0, std::min<int64_t>(rows, 40)) : 0;
    // Queries before the first key have no position to rotate by.
    const bool rotated = c.rotary != Rotary::none;
    if (rotated) rows = std::max(rows, p.length_q(b) + pad - c.count_new(b));
    c.rows.push_back(static_cast<int32_t>(rows));
    if (padded) c.leftpad.push_back(static_cast<int32_t>(pad));
    p.lengths_k.push_back(static_cast<int32_t>(rows - pad + c.count_new(b)));
    p.len_k = std::max<int64_t>(p.len_k, p.lengths_k.back());
  }
}

void draw_room(CacheCase& c, Choices& choose) {
  const Case& p = c.plain;
  c.spare = choose.one_of<int64_t>({0, 0, 1, 3});
  c.shared = choose.chance(4);
  if (c.page_size) {
    c.room = (c.longest() + c.page_size - 1) / c.page_size + choose.one_of<int64_t>({0, 0, 1, 3, 100});
    c.table_gap = choose.chance(3) ? choose.between(1, 5) : 0;
    return;
  }
  c.batch_idx = choose.chance(3);
  const int64_t more = choose.one_of<int64_t>({0, 0, 1, 7, 64, 1000, 5000});
  const int64_t elements_of_row = (p.batch + c.spare) * p.heads_k * (p.dim + p.dim_v) + 1;
  c.room = c.longest() + std::min<int64_t>(more, std::max<int64_t>(1, kLargestCache / elements_of_row));
}

void draw_cache_memory(CacheCase& c, Choices& choose) {
  c.plain.q = draw_layout(choose, Role::input);
  c.plain.o = draw_layout(choose, Role::output);
  c.plain.k = draw_layout(choose, Role::output);
  c.plain.v = draw_layout(choose, Role::output);
  c.k_new = draw_layout(choose, Role::input);
  c.v_new = draw_layout(choose, Role::input);
  c.plain.lse.gap = choose.chance(4) ? choose.between(1, 5) : 0;
  c.plain.lse.offset = choose.chance(4) ? choose.between(1, 5) : 0;
}

// Calls over a cache have no gradients and no mask tensor.
void draw_scores(Case& c, Choices& choose, const Limits& limits) {
  draw_options(c, choose);
  if (limits.kernel_set) draw_option_set(c, choose, limits.kernel_set->options);
  c.alignment = Alignment::bottom_right;
  c.bias.reset(), c.mask.reset();
  c.dropout_p = 0, c.dropout_seed = c.dropout_offset = 0;
}

}  // namespace

CacheCase draw_cache_case(Choices& choose, const Limits& limits) {
  CacheCase c;
  Case& p = c.plain;
  p.device = limits.device;
  const bool fast = p.device == Device::cuda && (!limits.kernel_set || size_of(limits.kernel_set->dtype) == 2);
  const bool many_rows = fast && choose.chance(kManyRowsOnCuda);
  const bool prefill = fast && !many_rows && choose.chance(kPrefillOnCuda);
  const bool plain = fast && !many_rows && !prefill && choose.chance(kPlainOnCuda);
  draw_types(p, choose, limits);
  if (many_rows) draw_many_rows(c, choose, limits);
  else if (prefill) draw_prefill(c, choose, limits);
  else draw_shape(c, choose, limits);
  if (plain) make_plain(c, choose, limits);
  if (choose.chance(2))
    c.page_size = choose.one_of<int64_t>({16, 1, 2, 3, 5, 7, 8, 15, 16, 17, 32, 33, 48, 64, 100, 127, 128, 130, 256});
  if (!plain) draw_queries(p, choose), draw_new_rows(c, choose, prefill), draw_rotary(c, choose);
  const int64_t most = many_rows || prefill ? choose.one_of<int64_t>({40, 130, 330}) : max_keys(p, choose, limits);
  draw_lengths_of_keys(c, choose, most, !plain);
  draw_room(c, choose);
  if (!many_rows && !prefill && !plain) c.num_splits = choose.one_of<int32_t>({0, 0, 0, 1, 2, 3, 4, 5, 7, 9});
  if (const bool alone = choose.chance(3); alone && c.num_splits > 0 && p.batch > 1)
    c.alone = choose.between(0, p.batch - 1);
  draw_data(p, choose);
  p.lse_asked = !choose.chance(6);
  draw_execution(p, choose);
  draw_cache_memory(c, choose);
  if (many_rows || prefill || plain || (limits.kernel_set && limits.kernel_set->rows != RowAlignment::any))
    for (Layout* layout : {&p.q, &p.k, &p.v, &p.o, &c.k_new, &c.v_new}) align_rows(*layout);
  draw_scores(p, choose, limits);
  if (p.device == Device::cuda) draw_cuda_execution(p, choose);
  return c;
}

}  // namespace cuflash::check
