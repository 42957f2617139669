#include "tests/shared/cached_sequences.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "check/cases/random.h"
#include "check/run/compare.h"
#include "reference/naive.h"
#include "reference/noise.h"
#include "reference/oracle.h"

namespace cuflash::test {
namespace {

constexpr int32_t kNoPage = 1 << 30;  // an entry that no call may read

size_t at(int64_t n) { return static_cast<size_t>(n); }

double rounded(double value, DType type) {
  double stored;
  store_row(&stored, type, 0, 1, &value);
  return load_element(&stored, type, 0);
}

std::vector<int32_t> cumulative(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> cu{0};
  for (const int32_t length : lengths) cu.push_back(cu.back() + length);
  return cu;
}

int32_t longest(const std::vector<int32_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

// Row `row` of sequence b, for a head: of a dense tensor, or of a packed one.
int64_t row_offset(const Tensor& t, const std::vector<int32_t>& cu, int64_t b, int64_t h, int64_t row) {
  if (t.rank == 3) return (cu[at(b)] + row) * t.stride[0] + h * t.stride[1];
  return b * t.stride[0] + h * t.stride[1] + row * t.stride[2];
}

bool same_memory(const Buffer& a, const Buffer& b) {
  return std::memcmp(a.view().data, b.view().data, at(a.span() * size_of(a.view().dtype))) == 0;
}

void set_row(Buffer& to, int64_t offset, const double* values, int64_t dim) { to.set_row(offset, dim, values); }

}  // namespace

int64_t CachedSequences::pad(int64_t b) const { return s_.leftpad.empty() ? 0 : s_.leftpad[at(b)]; }
int64_t CachedSequences::fresh(int64_t b) const { return s_.fresh.empty() ? 0 : s_.fresh[at(b)]; }
int64_t CachedSequences::old_keys(int64_t b) const { return s_.rows[at(b)] - pad(b); }
int64_t CachedSequences::keys(int64_t b) const { return old_keys(b) + fresh(b); }

// Whether the window lets any query see the key.
bool CachedSequences::seen(int64_t b, int64_t key) const {
  const int64_t queries = s_.queries[at(b)], first = keys(b) - queries, last = keys(b) - 1;
  if (queries == 0) return false;
  const int64_t right = s_.causal ? 0 : s_.window_right;
  return (s_.window_left < 0 || key >= first - s_.window_left) && (right < 0 || key <= last + right);
}

Tensor CachedSequences::rows_layout(Batching as, const std::vector<int32_t>& lengths, int64_t heads,
                                    int64_t dim) const {
  if (as == Batching::packed) return thd<void>(nullptr, s_.dtype, cumulative(lengths).back() + 2, heads, dim);
  const int64_t length = longest(lengths) + (as == Batching::padded ? 1 : 0);
  if (s_.order == Order::bhsd) return bhsd<void>(nullptr, s_.dtype, s_.batch(), heads, length, dim);
  return bshd<void>(nullptr, s_.dtype, s_.batch(), length, heads, dim);
}

Tensor CachedSequences::cache_layout(int64_t dim) const {
  const int64_t length = s_.page_size ? s_.page_size : room_;
  if (s_.order == Order::bhsd) return bhsd<void>(nullptr, s_.dtype, entries_, s_.heads_k, length, dim);
  return bshd<void>(nullptr, s_.dtype, entries_, length, s_.heads_k, dim);
}

Tensor CachedSequences::o_layout() const { return rows_layout(s_.queries_as, s_.queries, s_.heads_q, s_.dim_v); }
Tensor CachedSequences::lse_layout() const {
  const Tensor o = o_layout();
  if (o.rank == 3) return contiguous<void>(nullptr, state_type(s_.dtype), o.shape[1], o.shape[0]);
  return contiguous<void>(nullptr, state_type(s_.dtype), o.shape[0], o.shape[1], o.shape[2]);
}

CachedSequences::CachedSequences(const CacheSpec& spec) : s_(spec) {
  for (int64_t b = 0; b < s_.batch(); ++b) room_ = std::max(room_, s_.rows[at(b)] + fresh(b) + 3);
  if (s_.rotary) {
    cos_ = Buffer(contiguous<void>(nullptr, s_.rotary_type, room_, s_.rotary / 2));
    sin_ = Buffer(cos_.view());
    for (int64_t n = 0; n < room_ * s_.rotary / 2; ++n) {
      const double angle = static_cast<double>(n / (s_.rotary / 2)) / std::pow(7.0, n % (s_.rotary / 2));
      cos_.set(n, std::cos(angle)), sin_.set(n, std::sin(angle));
    }
    cos_.freeze(), sin_.freeze();
  }
  draw_tokens();
  place_pages();
  place_queries_and_fresh();
  make_plain();
}

// Rotates in double and rounds to the type once.
void CachedSequences::rotate(Values& rows, int64_t heads, int64_t row, int64_t position) const {
  const int64_t half = s_.rotary / 2;
  for (int64_t h = 0; h < heads; ++h) {
    double* x = rows.data() + (row * heads + h) * s_.dim;
    for (int64_t n = 0; n < half; ++n) {
      double& a = x[s_.interleaved ? 2 * n : n];
      double& b = x[s_.interleaved ? 2 * n + 1 : n + half];
      const double c = cos_.get(position * half + n), s = sin_.get(position * half + n), old = a;
      a = rounded(old * c - b * s, s_.dtype), b = rounded(b * c + old * s, s_.dtype);
    }
  }
}

// Draws numbers for each sequence that depend neither on the rest of the batch nor on where it is stored.
void CachedSequences::draw_tokens() {
  const auto draw = [&](int64_t rows, int64_t heads, int64_t dim, uint64_t seed) {
    const int64_t count = rows * heads * dim;
    Values values(at(count)), stored(at(count));
    check::Random(seed).normals(values.data(), count, 1);
    store_row(stored.data(), s_.dtype, 0, count, values.data());
    load_row(stored.data(), s_.dtype, 0, count, values.data());
    return values;
  };
  for (int64_t b = 0; b < s_.batch(); ++b) {
    const auto seed = static_cast<uint64_t>(s_.rows[at(b)]) * 1000 + static_cast<uint64_t>(fresh(b)) * 10;
    const int64_t queries = s_.queries[at(b)], shift = keys(b) - queries;
    k_raw_.push_back(draw(keys(b), s_.heads_k, s_.dim, seed + 1));
    q_raw_.push_back(draw(queries, s_.heads_q, s_.dim, seed + 2));
    k_.push_back(k_raw_.back()), q_.push_back(q_raw_.back());
    for (int64_t j = old_keys(b); j < keys(b); ++j) rotate(k_.back(), s_.heads_k, j, j);
    for (int64_t i = 0; i < queries; ++i) rotate(q_.back(), s_.heads_q, i, shift + (s_.one_position ? 0 : i));
    v_.push_back(draw(keys(b), s_.heads_k, s_.dim_v, seed + 3));
    if (!s_.v_in_k) continue;
    for (int64_t n = 0; n < keys(b) * s_.heads_k * s_.dim_v; ++n)
      v_.back()[at(n)] = k_.back()[at(n / s_.dim_v * s_.dim + n % s_.dim_v)];
  }
}

int64_t CachedSequences::pages_of(int64_t b) const {
  return (s_.rows[at(b)] + fresh(b) + s_.page_size - 1) / s_.page_size;
}

void CachedSequences::place_pages() {
  if (!s_.page_size) {
    entries_ = s_.batch() + 2;
    for (int64_t b = 0; b < s_.batch(); ++b) entry_.push_back(static_cast<int32_t>(entries_ - 1 - b));
    return;
  }
  columns_ = (room_ + s_.page_size - 1) / s_.page_size + 1;
  table_.assign(at(s_.batch() * columns_), kNoPage);
  for (int64_t b = 0; b < s_.batch(); ++b) entries_ += pages_of(b) + 1;
  std::vector<int32_t> free(at(entries_));
  std::iota(free.begin(), free.end(), 0);
  if (!s_.pages_in_order) std::shuffle(free.begin(), free.end(), std::mt19937_64(9));
  for (int64_t b = 0, n = 0; b < s_.batch(); ++b)
    for (int64_t column = 0; column < pages_of(b); ++column) table_[at(b * columns_ + column)] = free[at(n++)];
  // Pages without a visible or written token have invalid entries.
  for (int64_t b = 0; b < s_.batch(); ++b)
    for (int64_t column = 0; column < pages_of(b); ++column) {
      bool needed = false;
      for (int64_t row = column * s_.page_size; row < (column + 1) * s_.page_size; ++row) {
        const int64_t key = row - pad(b);
        needed |= key >= 0 && key < keys(b) && (key >= old_keys(b) || seen(b, key));
      }
      if (!needed) table_[at(b * columns_ + column)] = column % 2 ? kNoPage : -1;
    }
}

void CachedSequences::place_queries_and_fresh() {
  const std::vector<int32_t> cu_q = cumulative(s_.queries), cu_new = cumulative(s_.fresh);
  q_given_ = Buffer(rows_layout(s_.queries_as, s_.queries, s_.heads_q, s_.dim));
  for (int64_t b = 0; b < s_.batch(); ++b)
    for (int64_t i = 0; i < s_.queries[at(b)]; ++i)
      for (int64_t h = 0; h < s_.heads_q; ++h)
        set_row(q_given_, row_offset(q_given_.view(), cu_q, b, h, i), &q_raw_[at(b)][at((i * s_.heads_q + h) * s_.dim)],
                s_.dim);
  q_given_.freeze();

  attention_.q = q_given_.view();
  attention_.causal = s_.causal, attention_.softcap = s_.softcap;
  attention_.window_left = s_.window_left, attention_.window_right = s_.window_right;
  for (int64_t h = 0; h < s_.heads_q; ++h) {
    slopes_.push_back(0.02f * static_cast<float>(h + 1)), sink_.push_back(0.3f * static_cast<float>(h));
  }
  if (s_.alibi) attention_.alibi_slopes = contiguous(slopes_.data(), s_.heads_q);
  if (s_.sink) attention_.sink = contiguous(sink_.data(), s_.heads_q);
  if (s_.queries_as == Batching::packed) cu_q_ = cu_q, attention_.cu_seqlens_q = contiguous(cu_q_.data(), cu_q_.size());
  if (s_.queries_as == Batching::padded)
    used_q_ = s_.queries, attention_.seqlens_q = contiguous(used_q_.data(), used_q_.size());

  if (s_.fresh.empty()) return;
  k_new_ = Buffer(rows_layout(s_.fresh_as, s_.fresh, s_.heads_k, s_.dim));
  if (!s_.v_in_k) v_new_ = Buffer(rows_layout(s_.fresh_as, s_.fresh, s_.heads_k, s_.dim_v));
  for (int64_t b = 0; b < s_.batch(); ++b)
    for (int64_t n = 0; n < fresh(b); ++n)
      for (int64_t h = 0; h < s_.heads_k; ++h) {
        const int64_t token = (old_keys(b) + n) * s_.heads_k + h;
        set_row(k_new_, row_offset(k_new_.view(), cu_new, b, h, n), &k_raw_[at(b)][at(token * s_.dim)], s_.dim);
        if (s_.v_in_k) continue;
        set_row(v_new_, row_offset(v_new_.view(), cu_new, b, h, n), &v_[at(b)][at(token * s_.dim_v)], s_.dim_v);
      }
  k_new_.freeze();
  if (!s_.v_in_k) v_new_.freeze();
  if (s_.fresh_as == Batching::packed) cu_new_ = cu_new;
  if (s_.fresh_as == Batching::padded) used_new_ = s_.fresh;
}

void CachedSequences::make_plain() {
  plain_ = attention_;
  plain_q_ = Buffer(q_given_.view());
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < s_.batch(); ++b) lengths.push_back(static_cast<int32_t>(keys(b)));
  const Batching as = s_.queries_as == Batching::packed ? Batching::packed : Batching::padded;
  const std::vector<int32_t> cu_q = cumulative(s_.queries), cu_k = cumulative(lengths);
  plain_k_ = Buffer(rows_layout(as, lengths, s_.heads_k, s_.dim));
  plain_v_ = Buffer(rows_layout(as, lengths, s_.heads_k, s_.dim_v));
  for (int64_t b = 0; b < s_.batch(); ++b) {
    for (int64_t i = 0; i < s_.queries[at(b)]; ++i)
      for (int64_t h = 0; h < s_.heads_q; ++h)
        set_row(plain_q_, row_offset(plain_q_.view(), cu_q, b, h, i), &q_[at(b)][at((i * s_.heads_q + h) * s_.dim)],
                s_.dim);
    for (int64_t j = 0; j < keys(b); ++j)
      for (int64_t h = 0; h < s_.heads_k; ++h) {
        const int64_t token = j * s_.heads_k + h;
        set_row(plain_k_, row_offset(plain_k_.view(), cu_k, b, h, j), &k_[at(b)][at(token * s_.dim)], s_.dim);
        set_row(plain_v_, row_offset(plain_v_.view(), cu_k, b, h, j), &v_[at(b)][at(token * s_.dim_v)], s_.dim_v);
      }
  }
  plain_.q = plain_q_.view(), plain_.k = plain_k_.view(), plain_.v = plain_v_.view();
  plain_cu_k_ = cu_k, plain_used_k_ = lengths;
  if (as == Batching::packed) plain_.cu_seqlens_k = contiguous(plain_cu_k_.data(), plain_cu_k_.size());
  else plain_.seqlens_k = contiguous(plain_used_k_.data(), plain_used_k_.size());
}

int64_t CachedSequences::offset(const Tensor& cache, int64_t b, int64_t h, int64_t key) const {
  const int64_t row = pad(b) + key;
  int64_t entry = s_.batch_idx && !s_.page_size ? entry_[at(b)] : b;
  int64_t within = row;
  if (s_.page_size) entry = table_[at(b * columns_ + row / s_.page_size)], within = row % s_.page_size;
  return entry * cache.stride[0] + h * cache.stride[1] + within * cache.stride[2];
}

// Tokens of invalid pages have no memory.
void CachedSequences::write_tokens(Buffer& k, Buffer& v, bool after) const {
  for (int64_t b = 0; b < s_.batch(); ++b)
    for (int64_t j = 0; j < (after ? keys(b) : old_keys(b)); ++j) {
      if (s_.page_size) {
        const int32_t page = table_[at(b * columns_ + (pad(b) + j) / s_.page_size)];
        if (page < 0 || page == kNoPage) continue;
      }
      for (int64_t h = 0; h < s_.heads_k; ++h) {
        const int64_t token = j * s_.heads_k + h;
        set_row(k, offset(k.view(), b, h, j), &k_[at(b)][at(token * s_.dim)], s_.dim);
        if (!s_.v_in_k) set_row(v, offset(v.view(), b, h, j), &v_[at(b)][at(token * s_.dim_v)], s_.dim_v);
      }
    }
}

CacheTensors CachedSequences::tensors(const Buffer& o, const Buffer& lse) const {
  CacheTensors t;
  t.k = k_cache_.view(), t.v = v_cache_.view(), t.seqlens = contiguous(s_.rows.data(), s_.batch());
  if (s_.v_in_k) t.v = k_cache_.view(), t.v.shape[3] = s_.dim_v;
  if (s_.page_size) t.block_table = contiguous(table_.data(), s_.batch(), columns_);
  if (s_.batch_idx && !s_.page_size) t.batch_idx = contiguous(entry_.data(), s_.batch());
  if (!s_.leftpad.empty()) t.leftpad = contiguous(s_.leftpad.data(), s_.batch());
  if (!s_.fresh.empty()) {
    t.k_new = k_new_.view();
    if (!s_.v_in_k) t.v_new = v_new_.view();
    if (!cu_new_.empty()) t.cu_seqlens_new = contiguous(cu_new_.data(), cu_new_.size());
    if (!used_new_.empty()) t.seqlens_new = contiguous(used_new_.data(), used_new_.size());
  }
  if (s_.rotary) t.rotary_cos = cos_.view(), t.rotary_sin = sin_.view();
  t.rotary_interleaved = s_.interleaved, t.rotary_one_position = s_.one_position;
  t.num_splits = s_.num_splits;
  t.o = o.view(), t.lse = lse.view();
  return t;
}

// Compares every byte of the cache with one written by the test. Rotated keys may differ by their rounding.
void CachedSequences::expect_appended(const Buffer& k, const Buffer& v) const {
  Buffer expected_k(k.view()), expected_v(v.view());
  write_tokens(expected_k, expected_v, true);
  const double unit = s_.dtype == DType::f64   ? 1e-15
                      : s_.dtype == DType::f32 ? 3e-7
                      : s_.dtype == DType::f16 ? 1e-3
                                               : 8e-3;
  if (s_.rotary)
    for (int64_t b = 0; b < s_.batch(); ++b)
      for (int64_t j = old_keys(b); j < keys(b); ++j)
        for (int64_t h = 0; h < s_.heads_k; ++h)
          for (int64_t d = 0; d < s_.rotary; ++d) {
            const int64_t element = offset(k.view(), b, h, j) + d;
            ASSERT_NEAR(k.get(element), expected_k.get(element), unit * 4);
            expected_k.set(element, k.get(element));
          }
  EXPECT_TRUE(same_memory(k, expected_k)) << "k";
  EXPECT_TRUE(same_memory(v, expected_v)) << "v";
  EXPECT_EQ(k.damage() + v.damage(), "");
}

CacheResult CachedSequences::run(const Execution& execution) {
  k_cache_ = Buffer(cache_layout(s_.dim));
  v_cache_ = Buffer(cache_layout(s_.dim_v));
  write_tokens(k_cache_, v_cache_, false);
  Buffer o(o_layout(), 0, "o"), lse(lse_layout(), 0, "lse");
  flash_attention_with_cache(attention_, tensors(o, lse), execution);
  if (s_.queries_as == Batching::packed) o.limit(0, cu_q_.back()), lse.limit(1, cu_q_.back());
  for (const Buffer* buffer : {&o, &lse, &q_given_, &k_new_, &v_new_, &cos_, &sin_})
    EXPECT_EQ(*buffer ? buffer->damage() : "", "");
  EXPECT_EQ(o.unwritten(), "");
  EXPECT_EQ(lse.unwritten(), "");
  expect_appended(k_cache_, v_cache_);
  return {o.read(), lse.read()};
}

void CachedSequences::expect_matches_oracle(const CacheResult& result) {
  using check::Quantity;
  const reference::Forward exact = reference::oracle_forward(plain_), naive = reference::naive_forward(plain_);
  const reference::Forward noise = reference::forward_noise(plain_);
  EXPECT_EQ(check::disagreement("o", Quantity::output, s_.dtype, s_.dtype, result.o, exact.o, naive.o, noise.o), "");
  EXPECT_EQ(check::disagreement("lse", Quantity::lse, s_.dtype, state_type(s_.dtype), result.lse, exact.lse, naive.lse,
                                noise.lse),
            "");
}

CacheResult CachedSequences::run_alone(int64_t b) {
  CacheSpec one = s_;
  const auto keep = [&](std::vector<int32_t>& values) {
    if (!values.empty()) values = {values[at(b)]};
  };
  keep(one.rows), keep(one.leftpad), keep(one.queries), keep(one.fresh);
  CachedSequences alone(one);
  return alone.part_of(alone.run(), 0);
}

CacheResult CachedSequences::part_of(const CacheResult& all, int64_t b) const {
  const Tensor o = o_layout();
  const std::vector<int32_t> cu = cumulative(s_.queries);
  const bool packed = o.rank == 3;
  const int64_t length = packed ? o.shape[0] : o.shape[2];
  CacheResult part;
  const auto take = [&](int64_t h, int64_t i) {
    const int64_t row = cu[at(b)] + i;
    const int64_t o_row = packed ? row * s_.heads_q + h : (b * s_.heads_q + h) * length + i;
    const int64_t lse_at = packed ? h * length + row : o_row;
    part.o.insert(part.o.end(), all.o.begin() + o_row * s_.dim_v, all.o.begin() + (o_row + 1) * s_.dim_v);
    part.lse.push_back(all.lse[at(lse_at)]);
  };
  for (int64_t h = 0; h < s_.heads_q; ++h)
    for (int64_t i = 0; i < s_.queries[at(b)]; ++i) take(h, i);
  return part;
}

}  // namespace cuflash::test
