#include "check/cases/cache_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "check/cases/fill.h"
#include "check/cases/layout.h"
#include "dtype.h"
#include "error.h"
#include "reference/cache.h"

namespace cuflash::check {
namespace {

size_t at(int64_t index) { return static_cast<size_t>(index); }

template <class T>
void shuffle(std::vector<T>& values, Random& random) {
  for (size_t n = values.size(); n > 1; --n) std::swap(values[n - 1], values[random.below(n)]);
}

GuardedTensor place_integers(const char* name, const std::vector<int32_t>& values) {
  GuardedTensor t = place_vector(name, DType::i32, {static_cast<int64_t>(values.size())});
  t.write({values.begin(), values.end()});
  return t;
}

// A page number that is negative, out of range, or of another sequence.
int32_t any_integer(Random& random, int64_t pages) {
  const int32_t integers[] = {-1,
                              std::numeric_limits<int32_t>::min(),
                              std::numeric_limits<int32_t>::max(),
                              static_cast<int32_t>(pages),
                              static_cast<int32_t>(pages / 2),
                              0};
  return integers[random.below(std::size(integers))];
}

}  // namespace

CacheMemory::CacheMemory(const CacheCase& c) : case_(c) {
  if (c.plain.mode == Mode::packed) cu_q_ = cumulative(c.plain.lengths_q), cu_k_ = cumulative(c.plain.lengths_k);
  if (c.new_rows == NewRows::packed) cu_new_ = cumulative(c.lengths_new);
  Random random(c.plain.data_seed);
  c.page_size ? build_table(random) : build_entries(random);
  build_tensors();
  if (c.rotary != Rotary::none) build_rotary();
  fill(random);
  for (GuardedTensor* t : inputs()) t->freeze();
  k_before_ = k.bytes(), v_before_ = v.bytes();
}

std::vector<GuardedTensor*> CacheMemory::inputs() {
  return {&q,      &k_new,      &v_new,    &sink_,           &slopes_,      &cu_seqlens_q_, &seqlens_q_, &seqlens_,
          &table_, &batch_idx_, &leftpad_, &cu_seqlens_new_, &seqlens_new_, &cos_,          &sin_};
}

// Pages in any order. Sequences may share the full pages before their appends with the first sequence.
void CacheMemory::build_table(Random& random) {
  const CacheCase& c = case_;
  int64_t total = c.spare;
  for (int64_t b = 0; b < c.plain.batch; ++b) total += pages(b);
  std::vector<int32_t> free(at(total));
  std::iota(free.begin(), free.end(), 0);
  shuffle(free, random);
  for (int64_t b = 0; b < c.plain.batch; ++b) {
    std::vector<int32_t>& own = pages_.emplace_back(free.end() - pages(b), free.end());
    free.resize(free.size() - own.size());
    const int64_t full = std::min(c.before(0), c.before(b)) / c.page_size;
    if (c.shared && b > 0) std::copy_n(pages_[0].begin(), random.below(at(full) + 1), own.begin());
  }
  table_ = {"block_table", DType::i32, {c.plain.batch, c.room}, {c.room + c.table_gap, 1}, 1};
  table_.for_each([&](const Index&, int64_t offset) { table_.set(offset, any_integer(random, total)); });
  for (int64_t b = 0; b < c.plain.batch; ++b)
    for (int64_t r = c.pad(b); r < c.after(b); ++r)
      if (r >= c.before(b) || c.key_is_seen(b, r - c.pad(b)))
        table_.set(b * table_.view().stride[0] + r / c.page_size, pages_[at(b)][at(r / c.page_size)]);
}

void CacheMemory::build_entries(Random& random) {
  const CacheCase& c = case_;
  entries_.resize(at(c.plain.batch + c.spare));
  std::iota(entries_.begin(), entries_.end(), 0);
  if (!c.batch_idx) return;
  shuffle(entries_, random);
  if (c.shared && c.new_rows == NewRows::none)
    for (int32_t& entry : entries_)
      if (random.below(3) == 0) entry = entries_[0];
  batch_idx_ = place_integers("batch_idx", {entries_.begin(), entries_.begin() + c.plain.batch});
}

int64_t CacheMemory::entries() const {
  int64_t total = case_.spare + (case_.page_size ? 0 : case_.plain.batch);
  if (case_.page_size)
    for (int64_t b = 0; b < case_.plain.batch; ++b) total += pages(b);
  return total;
}

int64_t CacheMemory::cache_offset(const GuardedTensor& t, int64_t b, int64_t h, int64_t r) const {
  const bool paged = case_.page_size > 0;
  const int64_t entry = paged ? pages_[at(b)][at(r / case_.page_size)] : entries_[at(b)];
  return row_offset(t.view(), entry, h, paged ? r % case_.page_size : r);
}

void CacheMemory::build_tensors() {
  const CacheCase& c = case_;
  const Case& p = c.plain;
  const bool packed = p.mode == Mode::packed, packed_new = c.new_rows == NewRows::packed;
  const RowsShape out{p.batch, p.heads_q, packed ? p.rows_q() : p.len_q, p.dim_v};
  q = place_rows("q", p.dtype, packed, {out.batch, out.heads, out.length, p.dim}, p.q);
  o = place_rows("o", p.o_dtype, packed, out, p.o);
  lse = place_lse("lse", state_type(p.dtype), packed, out, p.lse);
  if (packed) o.limit(0, cu_q_.back()), lse.limit(1, cu_q_.back());

  const int64_t length = c.page_size ? c.page_size : c.room;
  k = place_rows("k", p.dtype, false, {entries(), p.heads_k, length, p.dim}, p.k);
  v = c.v_in_k ? k.columns("v", c.v_column, p.dim_v)
               : place_rows("v", p.dtype, false, {entries(), p.heads_k, length, p.dim_v}, p.v);
  if (c.new_rows != NewRows::none) {
    const int64_t rows = packed_new ? cu_new_.back() + c.slack_new : c.len_new;
    k_new = place_rows("k_new", p.dtype, packed_new, {p.batch, p.heads_k, rows, p.dim}, c.k_new);
    if (!c.v_in_k) v_new = place_rows("v_new", p.dtype, packed_new, {p.batch, p.heads_k, rows, p.dim_v}, c.v_new);
  }

  if (p.alibi_rank == 1) slopes_ = place_vector("alibi_slopes", DType::f32, {p.heads_q});
  if (p.alibi_rank == 2) slopes_ = place_vector("alibi_slopes", DType::f32, {p.batch, p.heads_q});
  if (p.sink) sink_ = place_vector("sink", p.sink_dtype, {p.heads_q});
  if (packed) cu_seqlens_q_ = place_integers("cu_seqlens_q", cu_q_);
  if (p.mode == Mode::padded) seqlens_q_ = place_integers("seqlens_q", p.lengths_q);
  seqlens_ = place_integers("seqlens", c.rows);
  if (!c.leftpad.empty()) leftpad_ = place_integers("leftpad", c.leftpad);
  if (packed_new) cu_seqlens_new_ = place_integers("cu_seqlens_new", cu_new_);
  if (c.new_rows == NewRows::padded) seqlens_new_ = place_integers("seqlens_new", c.lengths_new);
}

// Angles at the positions of queries and new keys; NaN at all others.
void CacheMemory::build_rotary() {
  const CacheCase& c = case_;
  int64_t positions = c.spare_positions;
  for (int64_t b = 0; b < c.plain.batch; ++b) positions = std::max(positions, c.spare_positions + c.plain.length_k(b));
  const int64_t half = c.rotary_dim / 2;
  cos_ = {"rotary_cos", c.rotary_dtype, {positions, half}, {half + c.rotary_gap, 1}, 1};
  sin_ = {"rotary_sin", c.rotary_dtype, {positions, half}, {half, 1}, 2};
  const auto know = [&](int64_t position) {
    for (int64_t n = 0; n < half; ++n) {
      const double angle =
          static_cast<double>(position) * std::pow(1e4, -static_cast<double>(n) / static_cast<double>(half));
      cos_.set(position * cos_.view().stride[0] + n, std::cos(angle));
      sin_.set(position * sin_.view().stride[0] + n, std::sin(angle));
    }
  };
  for (int64_t b = 0; b < c.plain.batch; ++b) {
    for (int64_t i = 0; i < c.plain.length_q(b); ++i) know(c.shift(b) + (c.one_position ? 0 : i));
    for (int64_t r = c.before(b); r < c.after(b); ++r) know(r - c.pad(b));
  }
}

void CacheMemory::fill(Random& random) {
  const CacheCase& c = case_;
  const Case& p = c.plain;
  const bool packed = p.mode == Mode::packed;
  // Keys and values of the equivalent call without a cache; the caches and the new rows are filled from them.
  GuardedTensor keys = place_rows("k", p.dtype, packed, {p.batch, p.heads_k, packed ? p.rows_k() : p.len_k, p.dim}, {});
  GuardedTensor values =
      place_rows("v", p.dtype, packed, {p.batch, p.heads_k, packed ? p.rows_k() : p.len_k, p.dim_v}, {});
  fill_qkv(p, q, keys, values, random);
  // The NaN is in a key, because a NaN in a value that one query sees may reach its neighbours, which the contract
  // allows.
  if (p.live_nan && !c.v_in_k && keys.span() > 0)
    keys.set(static_cast<int64_t>(random.below(at(keys.span()))), std::numeric_limits<double>::quiet_NaN());

  if (p.garbage) {
    fill_garbage(k, std::vector<bool>(at(k.span())), random);
    fill_garbage(v, std::vector<bool>(at(v.span())), random);
  }
  fill_cache(keys, k);
  if (!c.v_in_k) fill_cache(values, v);
  if (k_new) fill_new_rows(keys, k_new, random);
  if (v_new) fill_new_rows(values, v_new, random);

  std::vector<bool> used(at(q.span()));
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads_q; ++h)
      for (int64_t i = 0; i < p.length_q(b); ++i)
        for (int64_t d = 0; d < p.dim; ++d) used[at(row_offset(q.view(), b, h, first_q(b) + i) + d)] = true;
  fill_garbage(q, used, random);
  if (slopes_) fill_normal(slopes_, random, 0.3);
  if (sink_)  // a sink of -inf has no weight
    sink_.for_each([&](const Index&, int64_t offset) {
      sink_.set(offset, random.below(8) == 0 ? -std::numeric_limits<double>::infinity() : 2 * random.normal());
    });
}

static void copy_row(const GuardedTensor& from, int64_t from_offset, GuardedTensor& to, int64_t to_offset) {
  const int64_t dim = to.view().shape[at(to.view().rank - 1)];
  for (int64_t d = 0; d < dim; ++d) to.set(to_offset + d, from.get(from_offset + d));
}

// Rows that hold a token visible to a query.
void CacheMemory::fill_cache(const GuardedTensor& from, GuardedTensor& to) const {
  const CacheCase& c = case_;
  for (int64_t b = 0; b < c.plain.batch; ++b)
    for (int64_t j = 0; j < c.before(b) - c.pad(b); ++j)
      if (c.key_is_seen(b, j))
        for (int64_t h = 0; h < c.plain.heads_k; ++h)
          copy_row(from, row_offset(from.view(), b, h, j + (cu_k_.empty() ? 0 : cu_k_[at(b)])), to,
                   cache_offset(to, b, h, c.pad(b) + j));
}

void CacheMemory::fill_new_rows(const GuardedTensor& from, GuardedTensor& to, Random& random) const {
  const CacheCase& c = case_;
  fill_garbage(to, std::vector<bool>(at(to.span())), random);
  for (int64_t b = 0; b < c.plain.batch; ++b)
    for (int64_t n = 0; n < c.count_new(b); ++n)
      for (int64_t h = 0; h < c.plain.heads_k; ++h)
        copy_row(from, row_offset(from.view(), b, h, c.before(b) - c.pad(b) + n + (cu_k_.empty() ? 0 : cu_k_[at(b)])),
                 to, row_offset(to.view(), b, h, first_new(b) + n));
}

Attention CacheMemory::attention() const {
  const Case& p = case_.plain;
  Attention a{.q = q.view(), .k = {}, .v = {}};
  a.scale = p.scale;
  a.causal = p.causal;
  a.window_left = p.window_left;
  a.window_right = p.window_right;
  a.softcap = p.softcap;
  a.alibi_slopes = slopes_.view();
  a.sink = sink_.view();
  a.cu_seqlens_q = cu_seqlens_q_.view();
  if (p.give_max_seqlen) a.max_seqlen_q = p.len_q;
  a.seqlens_q = seqlens_q_.view();
  return a;
}

CacheTensors CacheMemory::tensors(bool with_lse) const {
  const CacheCase& c = case_;
  CacheTensors t{.k = k.view(), .v = v.view(), .seqlens = seqlens_.view(), .o = o.view()};
  t.block_table = table_.view(), t.batch_idx = batch_idx_.view(), t.leftpad = leftpad_.view();
  t.k_new = k_new.view(), t.v_new = v_new.view();
  t.cu_seqlens_new = cu_seqlens_new_.view(), t.seqlens_new = seqlens_new_.view();
  if (c.give_max_new) t.max_seqlen_new = c.len_new;
  t.rotary_cos = cos_.view(), t.rotary_sin = sin_.view();
  t.rotary_interleaved = c.rotary == Rotary::interleaved, t.rotary_one_position = c.one_position;
  t.num_splits = c.num_splits;
  if (with_lse) t.lse = lse.view();
  return t;
}

void CacheMemory::start() {
  k.put_back(k_before_), v.put_back(v_before_);
  k.freeze(), v.freeze();
  o.poison(), lse.poison();
}

// A copy has the same bits, including the sign of a zero.
static bool is_between(double actual, double least, double most) {
  if (std::isnan(least)) return std::isnan(actual);
  if (std::bit_cast<uint64_t>(least) == std::bit_cast<uint64_t>(most))
    return std::bit_cast<uint64_t>(actual) == std::bit_cast<uint64_t>(least);
  return actual >= least && actual <= most;
}

// Checks the new rows, and accepts that they have changed.
static std::string accept_rows(const char* name, GuardedTensor& t, const std::vector<reference::AppendedRow>& rows) {
  for (const reference::AppendedRow& row : rows) {
    for (size_t d = 0; d < row.least.size(); ++d) {
      const double actual = t.get(row.offset + static_cast<int64_t>(d)), least = row.least[d], most = row.most[d];
      if (!is_between(actual, least, most))
        return join(name, ": element ", d, " of the new row at ", row.offset, " is ", actual, ", expected ", least,
                    " to ", most);
    }
    t.accept(row.offset, static_cast<int64_t>(row.least.size()));
  }
  return "";
}

std::string CacheMemory::damage() {
  const Attention a = attention();
  const CacheTensors t = tensors(false);
  for (GuardedTensor* input : inputs())
    if (const std::string text = input->damage(); !text.empty()) return text;
  if (const std::string text = accept_rows("k", k, reference::appended_k(a, t)); !text.empty()) return text;
  if (const std::string text = accept_rows("v", v, reference::appended_v(a, t)); !text.empty()) return text;
  for (const GuardedTensor* output : {&k, &v, &o, &lse})
    if (const std::string text = output->damage(); !text.empty()) return text;
  return "";
}

}  // namespace cuflash::check
