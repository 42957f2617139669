#include "cache.h"

#include <algorithm>
#include <cmath>

#include "dtype.h"
#include "inputs.h"
#include "softmax_row.h"

namespace cuflash::reference {
namespace {

int64_t int_at(const ConstTensor& t, int64_t index) { return static_cast<const int32_t*>(t.data)[index]; }
int64_t int_at(const ConstTensor& t, int64_t index, int64_t otherwise) { return t ? int_at(t, index) : otherwise; }

int64_t batch_of(const Attention& a) { return a.cu_seqlens_q ? a.cu_seqlens_q.shape[0] - 1 : a.q.shape[0]; }

// One sequence of the call, as cuflash_cache.h defines it.
struct Cached {
  int64_t b;
  int64_t first_q, len_q;    // its queries
  int64_t first_new, count;  // its rows of k_new
  int64_t before, pad;       // rows before the append, and rows of left padding

  int64_t len_k() const { return before + count - pad; }
  int64_t shift() const { return len_k() - len_q; }
};

Cached sequence(const Attention& a, const CacheTensors& c, int64_t b) {
  Cached s{b, 0, 0, 0, 0, int_at(c.seqlens, b), int_at(c.leftpad, b, 0)};
  s.len_q = a.cu_seqlens_q ? 0 : int_at(a.seqlens_q, b, a.q.shape[2]);
  if (a.cu_seqlens_q) s.first_q = int_at(a.cu_seqlens_q, b), s.len_q = int_at(a.cu_seqlens_q, b + 1) - s.first_q;
  if (!c.k_new) return s;
  s.count = c.cu_seqlens_new ? 0 : int_at(c.seqlens_new, b, c.k_new.shape[2]);
  if (c.cu_seqlens_new)
    s.first_new = int_at(c.cu_seqlens_new, b), s.count = int_at(c.cu_seqlens_new, b + 1) - s.first_new;
  return s;
}

// Row r of a sequence's cache.
int64_t cache_offset(const CacheTensors& c, const ConstTensor& t, int64_t b, int64_t h, int64_t r) {
  int64_t entry = int_at(c.batch_idx, b, b), row = r;
  if (c.block_table) {
    const int64_t page_size = t.shape[2];
    entry = int_at(c.block_table, b * c.block_table.stride[0] + r / page_size);
    row = r % page_size;
  }
  return entry * t.stride[0] + h * t.stride[1] + row * t.stride[2];
}

// A tensor [B, H, S, D], or packed [T, H, D] whose rows are numbered across the batch.
int64_t row_offset(const ConstTensor& t, int64_t b, int64_t h, int64_t row) {
  if (t.rank == 3) return row * t.stride[0] + h * t.stride[1];
  return b * t.stride[0] + h * t.stride[1] + row * t.stride[2];
}

std::vector<double> load(const ConstTensor& t, int64_t offset, int64_t count) {
  std::vector<double> row(static_cast<size_t>(count));
  load_row(t.data, t.dtype, offset, count, row.data());
  return row;
}

double rounded(DType type, double value) {
  double bits = 0, result = 0;  // 8 bytes hold an element of any type
  store_row(&bits, type, 0, 1, &value);
  load_row(&bits, type, 0, 1, &result);
  return result;
}

struct Rotated {
  std::vector<double> value, least, most;
};

// Two products and their sum, each rounded, differ from the true value by at most 2 units of roundoff of the products'
// magnitudes; the f64 arithmetic of this function by as much again.
void rotate_element(Rotated& row, size_t at, double value, double magnitude, DType type) {
  const double reach = 4 * (type == DType::f64 ? 0x1p-53 : 0x1p-24) * magnitude;
  row.value[at] = rounded(type, value);
  row.least[at] = rounded(type, value - reach);
  row.most[at] = rounded(type, value + reach);
}

// Rotates the first elements of a row by position t.
Rotated rotate(const CacheTensors& c, std::vector<double> x, int64_t t, DType type) {
  Rotated row{x, x, x};
  if (!c.rotary_cos) return row;
  const auto half = static_cast<size_t>(c.rotary_cos.shape[1]);
  const auto cos = load(c.rotary_cos, t * c.rotary_cos.stride[0], c.rotary_cos.shape[1]);
  const auto sin = load(c.rotary_sin, t * c.rotary_sin.stride[0], c.rotary_sin.shape[1]);
  for (size_t n = 0; n < half; ++n) {
    const size_t first = c.rotary_interleaved ? 2 * n : n, second = c.rotary_interleaved ? 2 * n + 1 : n + half;
    const double a = x[first], b = x[second];
    rotate_element(row, first, a * cos[n] - b * sin[n], std::abs(a * cos[n]) + std::abs(b * sin[n]), type);
    rotate_element(row, second, b * cos[n] + a * sin[n], std::abs(b * cos[n]) + std::abs(a * sin[n]), type);
  }
  return row;
}

template <class Visit>
void for_each_new_row(const Attention& a, const CacheTensors& c, const ConstTensor& from, Visit visit) {
  for (int64_t b = 0; b < batch_of(a); ++b) {
    const Cached s = sequence(a, c, b);
    for (int64_t h = 0; h < from.shape[1]; ++h)
      for (int64_t n = 0; n < s.count; ++n)
        visit(s, h, n, load(from, row_offset(from, b, h, s.first_new + n), from.shape[from.rank == 3 ? 2 : 3]));
  }
}

// Whether any query of the sequence sees key j, with causal and window as the spec writes them.
bool is_seen(const Attention& a, const Cached& s, int64_t j) {
  for (int64_t i = 0; i < s.len_q; ++i) {
    const int64_t behind = s.shift() + i - j;
    const bool left = a.window_left < 0 || behind <= a.window_left;
    const bool right = a.causal ? behind >= 0 : a.window_right < 0 || -behind <= a.window_right;
    if (left && right) return true;
  }
  return false;
}

ConstTensor contiguous_like(const ConstTensor& t, const std::vector<std::byte>& memory) {
  return t.rank == 3 ? contiguous(static_cast<const void*>(memory.data()), t.dtype, t.shape[0], t.shape[1], t.shape[2])
                     : contiguous(static_cast<const void*>(memory.data()), t.dtype, t.shape[0], t.shape[1], t.shape[2],
                                  t.shape[3]);
}

int64_t elements(const ConstTensor& t) {
  int64_t count = 1;
  for (int32_t d = 0; d < t.rank; ++d) count *= t.shape[static_cast<size_t>(d)];
  return count;
}

}  // namespace

std::vector<AppendedRow> appended_k(const Attention& a, const CacheTensors& c) {
  std::vector<AppendedRow> rows;
  if (!c.k_new) return rows;
  for_each_new_row(a, c, c.k_new, [&](const Cached& s, int64_t h, int64_t n, std::vector<double> x) {
    Rotated rotated = rotate(c, std::move(x), s.before + n - s.pad, c.k.dtype);
    rows.push_back({cache_offset(c, c.k, s.b, h, s.before + n), std::move(rotated.least), std::move(rotated.most)});
  });
  return rows;
}

std::vector<AppendedRow> appended_v(const Attention& a, const CacheTensors& c) {
  std::vector<AppendedRow> rows;
  if (!c.v_new) return rows;
  for_each_new_row(a, c, c.v_new, [&](const Cached& s, int64_t h, int64_t n, const std::vector<double>& x) {
    rows.push_back({cache_offset(c, c.v, s.b, h, s.before + n), x, x});
  });
  return rows;
}

PlainProblem::PlainProblem(const Attention& attention, const CacheTensors& cache) : attention_(attention) {
  gather_queries(attention, cache);
  gather_keys(attention, cache);
}

void PlainProblem::gather_queries(const Attention& a, const CacheTensors& c) {
  if (!c.rotary_cos || c.rotary_cos.shape[1] == 0) return;
  const int64_t dim = a.q.shape[a.q.rank == 3 ? 2 : 3];
  q_.resize(static_cast<size_t>(elements(a.q) * size_of(a.q.dtype)));
  q_spread_.resize(static_cast<size_t>(elements(a.q)));
  attention_.q = contiguous_like(a.q, q_);
  for (int64_t b = 0; b < batch_of(a); ++b) {
    const Cached s = sequence(a, c, b);
    for (int64_t h = 0; h < a.q.shape[1]; ++h)
      for (int64_t i = 0; i < s.len_q; ++i) {
        const int64_t position = s.shift() + (c.rotary_one_position ? 0 : i);
        const Rotated row = rotate(c, load(a.q, row_offset(a.q, b, h, s.first_q + i), dim), position, a.q.dtype);
        const int64_t to = row_offset(attention_.q, b, h, s.first_q + i);
        store_row(q_.data(), a.q.dtype, to, dim, row.value.data());
        for (size_t d = 0; d < row.value.size(); ++d)
          q_spread_[static_cast<size_t>(to) + d] = row.most[d] - row.least[d];
      }
  }
}

void PlainProblem::gather_keys(const Attention& a, const CacheTensors& c) {
  const int64_t batch = batch_of(a), heads = c.k.shape[1];
  cu_k_.push_back(0);
  for (int64_t b = 0; b < batch; ++b) {
    lengths_k_.push_back(static_cast<int32_t>(sequence(a, c, b).len_k()));
    cu_k_.push_back(cu_k_.back() + lengths_k_.back());
  }
  const int64_t longest = lengths_k_.empty() ? 0 : *std::max_element(lengths_k_.begin(), lengths_k_.end());
  const auto gather = [&](const ConstTensor& from, std::vector<std::byte>& memory) {
    const int64_t dim = from.shape[3];
    const ConstTensor shape = a.cu_seqlens_q
                                  ? contiguous<const void>(nullptr, from.dtype, int64_t{cu_k_.back()}, heads, dim)
                                  : contiguous<const void>(nullptr, from.dtype, batch, heads, longest, dim);
    memory.resize(static_cast<size_t>(elements(shape) * size_of(from.dtype)));
    const ConstTensor to = contiguous_like(shape, memory);
    for (int64_t b = 0; b < batch; ++b) {
      const Cached s = sequence(a, c, b);
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t j = 0; j < s.len_k(); ++j) {
          // A row that no query sees may be in an invalid page.
          if (!is_seen(a, s, j)) continue;
          const auto row = load(from, cache_offset(c, from, b, h, s.pad + j), dim);
          const int64_t first = a.cu_seqlens_q ? cu_k_[static_cast<size_t>(b)] : 0;
          store_row(memory.data(), from.dtype, row_offset(to, b, h, first + j), dim, row.data());
        }
    }
    return to;
  };
  attention_.k = gather(c.k, k_);
  attention_.v = gather(c.v, v_);
  if (a.cu_seqlens_q) attention_.cu_seqlens_k = contiguous(cu_k_.data(), cu_k_.size());
  else attention_.seqlens_k = contiguous(lengths_k_.data(), lengths_k_.size());
}

// If weights change by these amounts, LSE changes by their sum, and o by each amount times the distance of its value to o.
static void add_weight_noise(const Inputs& in, const Head& head, int64_t i, const SoftmaxRow& row,
                             const std::vector<double>& weight_noise, const std::vector<double>& v, Forward& noise) {
  for (const double moved : weight_noise) noise.lse[static_cast<size_t>(in.lse_rows(head)(i))] += moved;
  for (int64_t d = 0; d < in.dim_v; ++d) {
    const auto value = [&](size_t n) { return v[static_cast<size_t>(row.keys[n] * in.dim_v + d)]; };
    double o = 0, moved = 0;
    for (size_t n = 0; n < row.keys.size(); ++n) o += row.p[n] * value(n);
    for (size_t n = 0; n < row.keys.size(); ++n) moved += weight_noise[n] * std::abs(value(n) - o);
    noise.o[static_cast<size_t>(in.q_rows(head)(i) * in.dim_v + d)] += moved;
  }
}

// The largest change of a capped score if the raw score changes by `noise`. The slope does not bound it: another
// rounding may change a large score by several caps, from one end of tanh to the other, and the slope is 0 at both
// ends.
static double capped_noise(double score, double noise, double cap) {
  const double here = capped(score, cap);
  return std::max(capped(score + noise, cap) - here, here - capped(score - noise, cap));
}

Forward PlainProblem::rotary_noise() const {
  constexpr double kLargestExponent = 50;  // beyond it any result is allowed
  const Inputs in(attention_);
  Forward noise = in.empty_forward();
  std::fill(noise.lse.begin(), noise.lse.end(), 0);
  if (q_spread_.empty()) return noise;
  for (const Head& head : in.heads) {
    const auto q = in.load_q<double>(head), k = in.load_k<double>(head), v = in.load_v<double>(head);
    for (int64_t i = 0; i < head.len_q; ++i) {
      const SoftmaxRow row = softmax_row(in, head, i, q.data() + i * in.dim, k.data());
      const double* spread = q_spread_.data() + in.q_rows(head)(i) * in.dim;
      std::vector<double> weight_noise;
      for (size_t n = 0; n < row.keys.size(); ++n) {
        const double* key = k.data() + row.keys[n] * in.dim;
        double score_noise = 0;
        for (int64_t d = 0; d < in.dim; ++d) score_noise += std::abs(in.scale * key[d]) * spread[d];
        const double score = in.scale * dot(q.data() + i * in.dim, key, in.dim);
        const double moved = capped_noise(score, score_noise, in.attention.softcap);
        weight_noise.push_back(row.p[n] * std::expm1(std::min(kLargestExponent, moved)));
      }
      add_weight_noise(in, head, i, row, weight_noise, v, noise);
    }
  }
  return noise;
}

}  // namespace cuflash::reference
