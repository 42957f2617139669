#include "tests/cpu/kv/cache_scene.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include "dtype.h"

namespace cuflash::test {
namespace {

int64_t sum_of(const std::vector<int32_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }
int64_t largest(const std::vector<int32_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}
int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// The values rounded to the type.
std::vector<double> rounded(const std::vector<double>& values, DType dtype) {
  std::vector<double> bytes(values.size()), result(values.size());
  const auto count = static_cast<int64_t>(values.size());
  store_row(bytes.data(), dtype, 0, count, values.data());
  load_row(bytes.data(), dtype, 0, count, result.data());
  return result;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-11;
    case DType::f32: return 2e-5;
    case DType::f16: return 4e-3;
    default: return 3e-2;
  }
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

std::string list(const char* name, const std::vector<int32_t>& values) {
  std::ostringstream text;
  if (values.empty()) return "";
  text << " " << name << "=";
  for (size_t n = 0; n < values.size(); ++n) text << (n ? "," : "") << values[n];
  return text.str();
}

}  // namespace

std::string describe(const CacheCase& c) {
  std::ostringstream text;
  text << name_of(c.dtype) << " D=" << c.dim_qk << " Dv=" << c.dim_v << " Hk=" << c.heads_k << " group=" << c.group
       << " page=" << c.page_size << " room=" << c.room << list("len_q", c.len_q) << list("rows", c.rows)
       << list("pad", c.pad) << list("new", c.len_new) << " window=" << c.window_left << "," << c.window_right
       << " scale=" << c.scale << " softcap=" << c.softcap << " alibi=" << c.alibi << " sink=" << c.sink
       << " rotary=" << c.rotary << " interleaved=" << c.interleaved << " one=" << c.one_position
       << " splits=" << c.num_splits << " v_in_k=" << c.v_in_k << "," << c.v_column << " aligned=" << c.aligned
       << " packed=" << c.packed_q << "," << c.packed_new << " seed=" << c.seed;
  return text.str();
}

MirroredTensor::MirroredTensor(DType dtype, const std::vector<int64_t>& shape, const std::vector<size_t>& memory_order,
                               int64_t offset)
    : buffer(static_cast<size_t>((elements_of(shape) + offset) * size_of(dtype))),
      host(buffer.read()),
      offset_(offset) {
  view.data = static_cast<std::byte*>(buffer.data()) + offset * size_of(dtype);
  view.dtype = dtype, view.rank = static_cast<int32_t>(shape.size());
  int64_t step = 1;
  for (size_t n = memory_order.size(); n-- > 0;) {
    const size_t d = memory_order[n];
    view.shape[d] = shape[d], view.stride[d] = step;
    step *= shape[d];
  }
}
int64_t MirroredTensor::element(const std::vector<int64_t>& index) const {
  int64_t element = offset_;
  for (size_t d = 0; d < index.size(); ++d) element += index[d] * view.stride[d];
  return element;
}
std::vector<double> MirroredTensor::row(std::vector<int64_t> index, int64_t count) const {
  std::vector<double> values(static_cast<size_t>(count));
  load_row(host.data(), view.dtype, element(index), count, values.data());
  return values;
}
void MirroredTensor::set_row(std::vector<int64_t> index, const std::vector<double>& values) {
  store_row(host.data(), view.dtype, element(index), static_cast<int64_t>(values.size()), values.data());
}

CacheScene::CacheScene(const CacheCase& c) : c_(c), max_q_(largest(c.len_q)), max_new_(largest(c.len_new)) {
  make_places();
  make_queries();
  make_cache();
  if (!c.len_new.empty()) make_new_rows();
  if (c.rotary) make_rotary();
  make_scores();
  make_outputs();
  cache.num_splits = c.num_splits;
}

std::vector<double> CacheScene::normal(int64_t count, double deviation) {
  std::mt19937_64 random(c_.seed * 1000003 + ++draws_);
  std::normal_distribution<double> distribution(0, deviation);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& x : values) x = distribution(random);
  return values;
}

ConstTensor CacheScene::lengths(const std::vector<int32_t>& values) {
  ints_.push_back(copy_of(values));
  return ints_.back().view;
}
ConstTensor CacheScene::running_sum(const std::vector<int32_t>& values, std::vector<int64_t>& begins) {
  std::vector<int32_t> sums{0};
  for (const int32_t n : values) begins.push_back(sums.back()), sums.push_back(sums.back() + n);
  return lengths(sums);
}

bool CacheScene::sees(size_t b, int64_t i, int64_t j) const {
  const int64_t position = i + keys(b) - c_.len_q[b];
  return (c_.window_left < 0 || j >= position - c_.window_left) &&
         (c_.window_right < 0 || j <= position + c_.window_right);
}
bool CacheScene::is_seen(size_t b, int64_t j) const {
  for (int64_t i = 0; i < c_.len_q[b]; ++i)
    if (sees(b, i, j)) return true;
  return false;
}
CacheScene::Place CacheScene::place_of(size_t b, int64_t row) const {
  if (c_.page_size == 0) return {entry_of_[b], row};
  return {pages_[b][static_cast<size_t>(row / c_.page_size)], row % c_.page_size};
}

// Entries and pages in a random order. An unused page gets an invalid number.
void CacheScene::make_places() {
  std::mt19937_64 random(c_.seed * 7 + 3);
  const size_t columns = c_.page_size ? static_cast<size_t>((c_.room + c_.page_size - 1) / c_.page_size) : 1;
  entries_ = static_cast<int64_t>(batch() * columns) + 2;
  std::vector<int32_t> order(static_cast<size_t>(entries_));
  std::iota(order.begin(), order.end(), 0);
  if (c_.page_size || c_.has_entries) std::shuffle(order.begin(), order.end(), random);
  entry_of_.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(batch()));
  if (!c_.page_size) {
    if (c_.has_entries) cache.batch_idx = lengths(entry_of_);
    return;
  }
  std::vector<int32_t> table;
  for (size_t b = 0; b < batch(); ++b) {
    pages_.emplace_back();
    for (size_t column = 0; column < columns; ++column) {
      const int64_t first = static_cast<int64_t>(column) * c_.page_size;
      bool used = false;
      for (int64_t row = first; row < first + c_.page_size; ++row)
        used = used || (row >= c_.rows[b] && row < c_.rows[b] + appended(b)) ||
               (row >= padding(b) && row < c_.rows[b] && is_seen(b, row - padding(b)));
      pages_[b].push_back(used ? order[b * columns + column] : column % 2 ? -7 : 0x7ffffff0);
    }
    table.insert(table.end(), pages_[b].begin(), pages_[b].end());
  }
  ConstTensor view = lengths(table);
  view.rank = 2;
  view.shape = {static_cast<int64_t>(batch()), static_cast<int64_t>(columns)};
  view.stride = {static_cast<int64_t>(columns), 1};
  cache.block_table = view;
}

std::vector<int64_t> CacheScene::query_index(size_t b, int64_t h, int64_t i) const {
  if (c_.packed_q) return {q_begin_[b] + i, h, 0};
  return {static_cast<int64_t>(b), h, i, 0};
}

void CacheScene::make_queries() {
  const int64_t heads = c_.heads_k * c_.group, offset = c_.aligned ? 0 : 1;
  if (c_.packed_q) {
    attention.cu_seqlens_q = running_sum(c_.len_q, q_begin_);
    attention.max_seqlen_q = std::max<int64_t>(1, max_q_);
    q_ = MirroredTensor(c_.dtype, {sum_of(c_.len_q) + 1, heads, c_.dim_qk}, {0, 1, 2}, offset);
  } else {
    q_ = MirroredTensor(c_.dtype, {static_cast<int64_t>(batch()), heads, max_q_, c_.dim_qk}, {0, 2, 1, 3}, offset);
    attention.seqlens_q = lengths(c_.len_q);
  }
  for (size_t b = 0; b < batch(); ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < c_.len_q[b]; ++i) q_.set_row(query_index(b, h, i), normal(c_.dim_qk));
  q_.write();
  attention.q = q_.view;
}

void CacheScene::make_cache() {
  const int64_t length = c_.page_size ? c_.page_size : c_.room, offset = c_.aligned ? 0 : 1;
  k_ = MirroredTensor(c_.dtype, {entries_, c_.heads_k, length, c_.dim_qk}, {0, 2, 1, 3}, offset);
  if (!c_.v_in_k) v_ = MirroredTensor(c_.dtype, {entries_, c_.heads_k, length, c_.dim_v}, {0, 2, 1, 3}, offset);
  for (size_t b = 0; b < batch(); ++b)
    for (int64_t row = padding(b); row < c_.rows[b]; ++row) {
      if (!is_seen(b, row - padding(b))) continue;
      const Place at = place_of(b, row);
      for (int64_t h = 0; h < c_.heads_k; ++h) {
        k_.set_row({at.entry, h, at.row, 0}, normal(c_.dim_qk));
        if (!c_.v_in_k) v_.set_row({at.entry, h, at.row, 0}, normal(c_.dim_v));
      }
    }
  k_.write();
  if (!c_.v_in_k) v_.write();
  values_ = c_.v_in_k ? &k_ : &v_;
  cache.k = k_.view, cache.v = values_->view;
  cache.v.shape[3] = c_.dim_v;
  cache.v.data = static_cast<std::byte*>(cache.v.data) + value_column() * size_of(c_.dtype);
  rows_at_ = ints_.size();
  cache.seqlens = lengths(c_.rows);
  if (!c_.pad.empty()) cache.leftpad = lengths(c_.pad);
  for (int64_t e = 0; e < entries_; ++e)
    for (int64_t h = 0; h < c_.heads_k; ++h)
      for (int64_t row = 0; row < length; ++row) {
        old_k_.push_back(k_.row({e, h, row, 0}, c_.dim_qk));
        old_v_.push_back(values_->row({e, h, row, value_column()}, c_.dim_v));
      }
}

void CacheScene::make_new_rows() {
  const int64_t n = c_.packed_new ? sum_of(c_.len_new) : static_cast<int64_t>(batch());
  const auto make = [&](int64_t dim) {
    if (c_.packed_new) return MirroredTensor(c_.dtype, {n, c_.heads_k, dim}, {0, 1, 2});
    return MirroredTensor(c_.dtype, {n, c_.heads_k, max_new_, dim}, {0, 2, 1, 3});
  };
  k_new_ = make(c_.dim_qk);
  if (!c_.v_in_k) v_new_ = make(c_.dim_v);
  if (c_.packed_new) {
    cache.cu_seqlens_new = running_sum(c_.len_new, new_begin_);
    cache.max_seqlen_new = max_new_;
  } else {
    cache.seqlens_new = lengths(c_.len_new);
  }
  for (size_t b = 0; b < batch(); ++b)
    for (int64_t row = 0; row < c_.len_new[b]; ++row)
      for (int64_t h = 0; h < c_.heads_k; ++h) {
        const auto index = c_.packed_new ? std::vector<int64_t>{new_begin_[b] + row, h, 0}
                                         : std::vector<int64_t>{static_cast<int64_t>(b), h, row, 0};
        k_new_.set_row(index, normal(c_.dim_qk));
        if (!c_.v_in_k) v_new_.set_row(index, normal(c_.dim_v));
      }
  k_new_.write();
  cache.k_new = k_new_.view;
  if (c_.v_in_k) return;
  v_new_.write();
  cache.v_new = v_new_.view;
}

void CacheScene::make_rotary() {
  const DType type = c_.rotary_f32 ? DType::f32 : c_.dtype;
  const int64_t positions = c_.room + 3;
  cos_ = MirroredTensor(type, {positions, c_.rotary / 2}, {0, 1});
  sin_ = MirroredTensor(type, {positions, c_.rotary / 2}, {0, 1});
  for (int64_t position = 0; position < positions; ++position) {
    cos_.set_row({position, 0}, normal(c_.rotary / 2, 0.7));
    sin_.set_row({position, 0}, normal(c_.rotary / 2, 0.7));
  }
  cos_.write(), sin_.write();
  cache.rotary_cos = cos_.view, cache.rotary_sin = sin_.view;
  cache.rotary_interleaved = c_.interleaved, cache.rotary_one_position = c_.one_position;
}

void CacheScene::make_scores() {
  const int64_t heads = c_.heads_k * c_.group;
  attention.scale = c_.scale, attention.softcap = c_.softcap;
  attention.window_left = c_.window_left, attention.window_right = c_.window_right;
  if (c_.alibi) {
    slopes_ = MirroredTensor(DType::f32, {heads}, {0});
    slopes_.set_row({0}, normal(heads, 0.05));
    slopes_.write();
    attention.alibi_slopes = slopes_.view;
  }
  if (c_.sink) {
    sink_ = MirroredTensor(DType::f32, {heads}, {0});
    sink_.set_row({0}, normal(heads));
    sink_.write();
    attention.sink = sink_.view;
  }
}

void CacheScene::make_outputs() {
  const int64_t heads = c_.heads_k * c_.group;
  const DType type = c_.o_is_f32 ? DType::f32 : c_.dtype;
  if (c_.packed_q) {
    o_ = MirroredTensor(type, {sum_of(c_.len_q) + 1, heads, c_.dim_v}, {0, 1, 2});
    lse_ = MirroredTensor(state_type(c_.dtype), {heads, sum_of(c_.len_q) + 1}, {0, 1});
  } else {
    o_ = MirroredTensor(type, {static_cast<int64_t>(batch()), heads, max_q_, c_.dim_v}, {0, 2, 1, 3});
    lse_ = MirroredTensor(state_type(c_.dtype), {static_cast<int64_t>(batch()), heads, max_q_}, {0, 1, 2});
  }
  cache.o = o_.view;
  if (c_.has_lse) cache.lse = lse_.view;
}

// Rotates in the arithmetic of the contract, f32 or f64 for f64, and rounds to the type of q.
std::vector<double> CacheScene::rotated(std::vector<double> row, int64_t position) const {
  if (!c_.rotary) return row;
  const auto cos = cos_.row({position, 0}, c_.rotary / 2), sin = sin_.row({position, 0}, c_.rotary / 2);
  const auto rotate = [&](double x, double other, double c, double s, double sign) {
    // Volatile: rounded separately, not fused with the sum.
    if (c_.dtype == DType::f64) {
      const volatile double straight = x * c, across = other * s;
      return straight + sign * across;
    }
    const volatile float straight = static_cast<float>(x) * static_cast<float>(c);
    const volatile float across = static_cast<float>(other) * static_cast<float>(s);
    return static_cast<double>(straight + static_cast<float>(sign) * across);
  };
  for (int64_t n = 0; n < c_.rotary / 2; ++n) {
    const auto at = static_cast<size_t>(n);
    const size_t first = c_.interleaved ? 2 * at : at;
    const size_t second = c_.interleaved ? first + 1 : at + static_cast<size_t>(c_.rotary / 2);
    const double a = row[first], b = row[second];
    row[first] = rotate(a, b, cos[at], sin[at], -1);
    row[second] = rotate(b, a, cos[at], sin[at], 1);
  }
  return rounded(row, c_.dtype);
}

std::vector<double> CacheScene::query(size_t b, int64_t h, int64_t i) const {
  return rotated(q_.row(query_index(b, h, i), c_.dim_qk), keys(b) - c_.len_q[b] + (c_.one_position ? 0 : i));
}
std::vector<double> CacheScene::new_row(const MirroredTensor& t, size_t b, int64_t h, int64_t n, int64_t dim) const {
  if (c_.packed_new) return t.row({new_begin_[b] + n, h, 0}, dim);
  return t.row({static_cast<int64_t>(b), h, n, 0}, dim);
}
std::vector<double> CacheScene::new_key(size_t b, int64_t h, int64_t n) const {
  return rotated(new_row(k_new_, b, h, n, c_.dim_qk), c_.rows[b] + n - padding(b));
}
std::vector<double> CacheScene::new_value(size_t b, int64_t h, int64_t n) const {
  if (!c_.v_in_k) return new_row(v_new_, b, h, n, c_.dim_v);
  std::vector<double> row = new_key(b, h, n);
  row.erase(row.begin(), row.begin() + c_.v_column);
  row.resize(static_cast<size_t>(c_.dim_v));
  return row;
}
std::vector<double> CacheScene::key(size_t b, int64_t h, int64_t j) const {
  const int64_t row = padding(b) + j;
  if (row >= c_.rows[b]) return new_key(b, h, row - c_.rows[b]);
  const Place at = place_of(b, row);
  return old_k_[static_cast<size_t>((at.entry * c_.heads_k + h) * cache.k.shape[2] + at.row)];
}
std::vector<double> CacheScene::value(size_t b, int64_t h, int64_t j) const {
  const int64_t row = padding(b) + j;
  if (row >= c_.rows[b]) return new_value(b, h, row - c_.rows[b]);
  const Place at = place_of(b, row);
  return old_v_[static_cast<size_t>((at.entry * c_.heads_k + h) * cache.k.shape[2] + at.row)];
}

std::string CacheScene::fault_of_row(size_t b, int64_t h, int64_t i) const {
  const bool exists = i < c_.len_q[b];
  const auto width = static_cast<size_t>(c_.dim_v);
  std::vector<double> expected(width, 0), scores;
  double top = -kInf, sum = 0;
  if (exists) {
    const std::vector<double> q = query(b, h, i);
    for (int64_t j = 0; j < keys(b); ++j) {
      scores.push_back(-kInf);
      if (!sees(b, i, j)) continue;
      const std::vector<double> k = key(b, h / c_.group, j);
      double s = std::inner_product(q.begin(), q.end(), k.begin(), 0.0) * c_.scale;
      if (c_.softcap > 0) s = c_.softcap * std::tanh(s / c_.softcap);
      if (c_.alibi) s -= slopes_.row({h}, 1)[0] * std::abs(static_cast<double>(i + keys(b) - c_.len_q[b] - j));
      scores.back() = s;
      top = std::max(top, s);
    }
    if (c_.sink) top = std::max(top, sink_.row({h}, 1)[0]);
    for (const double s : scores) sum += s == -kInf ? 0 : std::exp(s - top);
    if (c_.sink) sum += std::exp(sink_.row({h}, 1)[0] - top);
    for (int64_t j = 0; j < keys(b); ++j) {
      const double s = scores[static_cast<size_t>(j)];
      if (s == -kInf) continue;
      const std::vector<double> v = value(b, h / c_.group, j);
      for (size_t d = 0; d < width; ++d) expected[d] += std::exp(s - top) / sum * v[d];
    }
  }
  const double lse = sum > 0 ? top + std::log(sum) : -kInf;
  std::ostringstream text;
  const std::vector<double> actual = o_.row(query_index(b, h, i), c_.dim_v);
  for (size_t d = 0; d < width; ++d)
    if (!(std::abs(actual[d] - expected[d]) <= tolerance(c_.dtype) * (1 + std::abs(expected[d])))) {
      text << "o[" << b << ", " << h << ", " << i << ", " << d << "] is " << actual[d] << ", not " << expected[d];
      return text.str();
    }
  if (!c_.has_lse) return "";
  auto index = query_index(b, h, i);
  if (c_.packed_q) index = {h, index[0]};
  else index.pop_back();
  const double actual_lse = lse_.row(index, 1)[0];
  if (actual_lse == lse || std::abs(actual_lse - lse) <= 1e-4 + 1e-5 * std::abs(lse)) return "";
  text << "lse[" << b << ", " << h << ", " << i << "] is " << actual_lse << ", not " << lse;
  return text.str();
}

// New rows were written, and everything else is unchanged.
std::string CacheScene::fault_of_cache() const {
  auto k = old_k_, v = old_v_;
  const int64_t length = cache.k.shape[2];
  const auto at = [&](Place p, int64_t h) { return static_cast<size_t>((p.entry * c_.heads_k + h) * length + p.row); };
  for (size_t b = 0; b < batch(); ++b)
    for (int64_t n = 0; n < appended(b); ++n)
      for (int64_t h = 0; h < c_.heads_k; ++h) {
        const Place p = place_of(b, c_.rows[b] + n);
        k[at(p, h)] = new_key(b, h, n), v[at(p, h)] = new_value(b, h, n);
      }
  for (int64_t e = 0; e < entries_; ++e)
    for (int64_t h = 0; h < c_.heads_k; ++h)
      for (int64_t row = 0; row < length; ++row) {
        const auto now_k = k_.row({e, h, row, 0}, c_.dim_qk),
                   now_v = values_->row({e, h, row, value_column()}, c_.dim_v);
        const size_t n = at({e, row}, h);
        if (!std::equal(now_k.begin(), now_k.end(), k[n].begin(), same) ||
            !std::equal(now_v.begin(), now_v.end(), v[n].begin(), same)) {
          std::ostringstream text;
          const bool in_k = !std::equal(now_k.begin(), now_k.end(), k[n].begin(), same);
          const auto [now, wanted] =
              std::mismatch(in_k ? now_k.begin() : now_v.begin(), in_k ? now_k.end() : now_v.end(),
                            in_k ? k[n].begin() : v[n].begin(), same);
          text.precision(12);
          text << (in_k ? "k" : "v") << "[" << e << ", " << h << ", " << row << "] of the cache has " << *now
               << " where it should have " << *wanted;
          return text.str();
        }
      }
  return "";
}

std::string CacheScene::fault() {
  o_.read(), lse_.read(), k_.read();
  if (!c_.v_in_k) v_.read();
  for (size_t b = 0; b < batch(); ++b)
    for (int64_t h = 0; h < c_.heads_k * c_.group; ++h)
      for (int64_t i = 0; i < (c_.packed_q ? c_.len_q[b] : max_q_); ++i)
        if (std::string text = fault_of_row(b, h, i); !text.empty()) return text;
  return fault_of_cache();
}

void CacheScene::set_rows(const std::vector<int32_t>& rows) const {
  ints_[rows_at_].memory.write(rows.data(), rows.size() * sizeof(int32_t));
}

std::vector<double> CacheScene::results(int64_t b) const {
  std::vector<double> all;
  const auto n = static_cast<size_t>(b);
  for (int64_t h = 0; h < c_.heads_k * c_.group; ++h)
    for (int64_t i = 0; i < c_.len_q[n]; ++i) {
      const auto index = query_index(n, h, i);
      const auto row = o_.row(index, c_.dim_v);
      all.insert(all.end(), row.begin(), row.end());
      const auto lse = c_.packed_q ? lse_.row({h, index[0]}, 1) : lse_.row({b, h, i}, 1);
      all.push_back(lse[0]);
    }
  return all;
}

}  // namespace cuflash::test
