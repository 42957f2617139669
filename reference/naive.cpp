#include "naive.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "dtype.h"
#include "inputs.h"
#include "multiply.h"
#include "numeric.h"

namespace cuflash::reference {

namespace {

// The value of an element after a matrix of this type was written to memory.
template <class Real>
void round_to(DType type, Real* values, int64_t count) {
  if constexpr (std::is_same_v<Real, float>) {
    if (type == DType::f16) {
      for (int64_t n = 0; n < count; ++n) values[n] = f16_to_float(float_to_f16(values[n]));
    } else if (type == DType::bf16) {
      for (int64_t n = 0; n < count; ++n) values[n] = bf16_to_float(float_to_bf16(values[n]));
    }
  }
}

// Skips a row if every weight for it is 0, since 0 * NaN would be NaN. Entry (x, r) of weights is the weight of row r in
// output x.
template <class Real>
void clear_unused(std::vector<Real>& rows, int64_t width, Matrix<Real> weights, int64_t outputs) {
  for (int64_t r = 0; r * width < static_cast<int64_t>(rows.size()); ++r) {
    Real* row = rows.data() + r * width;
    if (std::all_of(row, row + width, [](Real x) { return std::isfinite(x); })) continue;
    bool used = false;
    for (int64_t x = 0; x < outputs && !used; ++x) used = weights.data[x * weights.row + r * weights.column] != 0;
    if (!used) std::fill(row, row + width, Real{0});
  }
}

// The matrices of all heads, one after the other, and the passes that fill them. Each pass runs over all heads before the
// next begins, as in a framework that calls one operation after the other.
template <class Real>
class Naive {
 public:
  explicit Naive(const Attention& attention) : in(attention), type(attention.q.dtype) {
    for (const Head& head : in.heads) {
      begin.push_back(elements);
      elements += head.len_q * head.len_k;
    }
  }

  Forward forward() {
    scores();
    softmax();
    Values().swap(s);  // a framework frees the scores here
    dropout();
    return output();
  }

  Backward backward(const ConstTensor& dout, const ConstTensor& dlse, Forward* outputs) {
    const Forward fwd = forward();
    if (outputs) *outputs = fwd;
    Backward result = in.empty_backward();
    grad_probabilities(dout);
    grad_scores(dout, dlse, fwd, result);
    for (size_t n = 0; n < in.heads.size(); ++n) grad_inputs(n, dout, result);
    for (auto* gradient : {&result.dq, &result.dk, &result.dv, &result.dbias, &result.dsink}) round_result(*gradient);
    return result;
  }

 private:
  using Values = std::vector<Real>;
  const Inputs in;
  const DType type;
  std::vector<int64_t> begin;  // where the matrix of each head begins
  int64_t elements = 0;
  Values s, p, dropped, cap_slope, dp, ds;  // dropped only with dropout, cap_slope only with softcap
  std::vector<double> lse;

  Real* row_of(Values& matrix, size_t n, int64_t i) { return matrix.data() + begin[n] + i * in.heads[n].len_k; }
  Matrix<Real> matrix_of(Values& matrix, size_t n) { return {matrix.data() + begin[n], in.heads[n].len_k, 1}; }
  Values& weights() { return dropped.empty() ? p : dropped; }

  void round_result(std::vector<double>& values) {
    Values row(values.begin(), values.end());
    round_to(type, row.data(), static_cast<int64_t>(row.size()));
    values.assign(row.begin(), row.end());
  }

  void scores() {
    s.assign(static_cast<size_t>(elements), 0);
    if (in.attention.softcap > 0) cap_slope.assign(s.size(), 0);
    for (size_t n = 0; n < in.heads.size(); ++n) {
      const Head& head = in.heads[n];
      const Values q = in.load_q<Real>(head), k = in.load_k<Real>(head);
      multiply_add<Real>({q.data(), in.dim, 1}, {k.data(), 1, in.dim}, row_of(s, n, 0), head.len_q, head.len_k, in.dim);
      std::vector<uint8_t> visible;
      for (int64_t i = 0; i < head.len_q; ++i) finish_scores(n, i, visible);
    }
    round_to(type, s.data(), elements);
    round_to(type, cap_slope.data(), static_cast<int64_t>(cap_slope.size()));
  }

  void finish_scores(size_t n, int64_t i, std::vector<uint8_t>& visible) {
    const Head& head = in.heads[n];
    Real* row = row_of(s, n, i);
    const Real scale = static_cast<Real>(in.scale), cap = static_cast<Real>(in.attention.softcap);
    for (int64_t j = 0; j < head.len_k; ++j) row[j] *= scale;
    if (cap > 0) {
      Real* slope = row_of(cap_slope, n, i);
      for (int64_t j = 0; j < head.len_k; ++j) {
        const Real t = std::tanh(row[j] / cap);
        row[j] = cap * t;
        slope[j] = 1 - t * t;
      }
    }
    if (in.attention.alibi_slopes) {
      for (int64_t j = 0; j < head.len_k; ++j) row[j] -= static_cast<Real>(in.alibi(head, i, j));
    }
    if (in.attention.bias) {
      for (int64_t j = 0; j < head.len_k; ++j) row[j] += static_cast<Real>(in.bias(head, i, j));
    }
    if (!in.hides_keys()) return;
    in.visible_keys(head, i, visible);
    for (int64_t j = 0; j < head.len_k; ++j) {
      row[j] = visible[static_cast<size_t>(j)] ? row[j] : -std::numeric_limits<Real>::infinity();
    }
  }

  void softmax() {
    p.assign(static_cast<size_t>(elements), 0);
    lse = in.empty_forward().lse;
    for (size_t n = 0; n < in.heads.size(); ++n) {
      const Head& head = in.heads[n];
      const RowNumbers lse_rows = in.lse_rows(head);
      for (int64_t i = 0; i < head.len_q; ++i) {
        lse[static_cast<size_t>(lse_rows(i))] =
            softmax_row(row_of(s, n, i), row_of(p, n, i), head.len_k, static_cast<Real>(head.sink));
      }
    }
    round_to(type, p.data(), elements);
  }

  // Writes the probabilities of one row and returns its LSE.
  static Real softmax_row(const Real* score, Real* probability, int64_t count, Real sink) {
    constexpr Real kMinusInfinity = -std::numeric_limits<Real>::infinity();
    Real max = sink;
    for (int64_t j = 0; j < count; ++j) max = score[j] > max || std::isnan(score[j]) ? score[j] : max;
    if (max == kMinusInfinity) return kMinusInfinity;
    Real sum = std::exp(sink - max);
    for (int64_t j = 0; j < count; ++j) probability[j] = std::exp(score[j] - max);
    for (int64_t j = 0; j < count; ++j) sum += probability[j];
    for (int64_t j = 0; j < count; ++j) probability[j] /= sum;
    return max + std::log(sum);
  }

  void dropout() {
    if (in.attention.dropout_p == 0) return;
    dropped = p;
    for (size_t n = 0; n < in.heads.size(); ++n) scale_by_keep(dropped, n);
    round_to(type, dropped.data(), elements);
  }

  void scale_by_keep(Values& matrix, size_t n) {
    const Head& head = in.heads[n];
    for (int64_t i = 0; i < head.len_q; ++i) {
      Real* row = row_of(matrix, n, i);
      for (int64_t j = 0; j < head.len_k; ++j) {
        const Real keep = static_cast<Real>(in.keep(head, i, j));
        row[j] = keep == 0 ? 0 : row[j] * keep;
      }
    }
  }

  Forward output() {
    Forward result = in.empty_forward();
    result.lse = lse;
    for (size_t n = 0; n < in.heads.size(); ++n) {
      const Head& head = in.heads[n];
      Values v = in.load_v<Real>(head);
      clear_unused(v, in.dim_v, matrix_of(p, n), head.len_q);
      Values o(static_cast<size_t>(head.len_q * in.dim_v));
      multiply_add<Real>(matrix_of(weights(), n), {v.data(), in.dim_v, 1}, o.data(), head.len_q, in.dim_v, head.len_k);
      add_rows(o, in.q_rows(head), in.dim_v, 1, result.o);
    }
    round_result(result.o);
    return result;
  }

  // Adds factor times the rows of one head to their rows of a result.
  static void add_rows(const Values& rows, RowNumbers numbers, int64_t width, Real factor,
                       std::vector<double>& result) {
    const int64_t count = width == 0 ? 0 : static_cast<int64_t>(rows.size()) / width;
    for (int64_t i = 0; i < count; ++i) {
      double* to = result.data() + numbers(i) * width;
      for (int64_t d = 0; d < width; ++d)
        to[d] += static_cast<double>(factor * rows[static_cast<size_t>(i * width + d)]);
    }
  }

  // dP = dO V^T, through dropout
  void grad_probabilities(const ConstTensor& dout) {
    dp.assign(static_cast<size_t>(elements), 0);
    for (size_t n = 0; n < in.heads.size(); ++n) {
      const Head& head = in.heads[n];
      const Values d_o = in.load_dout<Real>(dout, head), v = in.load_v<Real>(head);
      multiply_add<Real>({d_o.data(), in.dim_v, 1}, {v.data(), 1, in.dim_v}, row_of(dp, n, 0), head.len_q, head.len_k,
                         in.dim_v);
      if (!dropped.empty()) scale_by_keep(dp, n);
    }
    round_to(type, dp.data(), elements);
  }

  // dS = P * (dP - delta), with dBias and dSink, which follow directly; then through softcap
  void grad_scores(const ConstTensor& dout, const ConstTensor& dlse, const Forward& fwd, Backward& result) {
    ds.assign(static_cast<size_t>(elements), 0);
    for (size_t n = 0; n < in.heads.size(); ++n) {
      const Head& head = in.heads[n];
      const Values d_o = in.load_dout<Real>(dout, head), d_lse = in.load_dlse<Real>(dlse, head);
      for (int64_t i = 0; i < head.len_q; ++i) {
        const Real row_lse = static_cast<Real>(lse[static_cast<size_t>(in.lse_rows(head)(i))]);
        if (std::isinf(row_lse) && row_lse < 0) continue;
        Real delta = -d_lse[static_cast<size_t>(i)];
        for (int64_t d = 0; d < in.dim_v; ++d) {
          delta += d_o[static_cast<size_t>(i * in.dim_v + d)] *
                   static_cast<Real>(fwd.o[static_cast<size_t>(in.q_rows(head)(i) * in.dim_v + d)]);
        }
        if (in.attention.sink) {
          result.dsink[static_cast<size_t>(head.h)] -=
              static_cast<double>(std::exp(static_cast<Real>(head.sink) - row_lse) * delta);
        }
        grad_score_row(n, i, delta, result);
      }
    }
    round_to(type, ds.data(), elements);
  }

  void grad_score_row(size_t n, int64_t i, Real delta, Backward& result) {
    const Head& head = in.heads[n];
    const Real *probability = row_of(p, n, i), *d_p = row_of(dp, n, i);
    Real* row = row_of(ds, n, i);
    for (int64_t j = 0; j < head.len_k; ++j) row[j] = probability[j] == 0 ? 0 : probability[j] * (d_p[j] - delta);
    if (in.attention.bias) {
      for (int64_t j = 0; j < head.len_k; ++j) {
        result.dbias[static_cast<size_t>(in.dbias_index(head, i, j))] += static_cast<double>(row[j]);
      }
    }
    if (cap_slope.empty()) return;
    const Real* slope = row_of(cap_slope, n, i);
    for (int64_t j = 0; j < head.len_k; ++j) row[j] = row[j] == 0 ? 0 : row[j] * slope[j];
  }

  // dQ = scale * dS K, dK = scale * dS^T Q, dV = drop(P)^T dO; query heads that share dK and dV add to them.
  void grad_inputs(size_t n, const ConstTensor& dout, Backward& result) {
    const Head& head = in.heads[n];
    const Matrix<Real> d_s = matrix_of(ds, n), weight = matrix_of(weights(), n);
    const Real scale = static_cast<Real>(in.scale);

    Values k = in.load_k<Real>(head), d_q(static_cast<size_t>(head.len_q * in.dim));
    clear_unused(k, in.dim, d_s, head.len_q);
    multiply_add<Real>(d_s, {k.data(), in.dim, 1}, d_q.data(), head.len_q, in.dim, head.len_k);
    add_rows(d_q, in.q_rows(head), in.dim, scale, result.dq);

    Values q = in.load_q<Real>(head), d_k(static_cast<size_t>(head.len_k * in.dim));
    clear_unused(q, in.dim, d_s.transposed(), head.len_k);
    multiply_add<Real>(d_s.transposed(), {q.data(), in.dim, 1}, d_k.data(), head.len_k, in.dim, head.len_q);
    add_rows(d_k, in.k_rows(head), in.dim, scale, result.dk);

    Values d_o = in.load_dout<Real>(dout, head), d_v(static_cast<size_t>(head.len_k * in.dim_v));
    clear_unused(d_o, in.dim_v, weight.transposed(), head.len_k);
    multiply_add<Real>(weight.transposed(), {d_o.data(), in.dim_v, 1}, d_v.data(), head.len_k, in.dim_v, head.len_q);
    add_rows(d_v, in.k_rows(head), in.dim_v, 1, result.dv);
  }
};

// Bytes of `matrices` score matrices of every head.
size_t matrix_bytes(const Attention& attention, int matrices) {
  const Inputs in(attention);
  size_t elements = 0;
  for (const Head& head : in.heads) elements += static_cast<size_t>(head.len_q * head.len_k);
  return elements * static_cast<size_t>(matrices) * static_cast<size_t>(size_of(state_type(attention.q.dtype)));
}

}  // namespace

Forward naive_forward(const Attention& attention) {
  if (attention.q.dtype == DType::f64) return Naive<double>(attention).forward();
  return Naive<float>(attention).forward();
}

Backward naive_backward(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                        Forward* forward) {
  if (attention.q.dtype == DType::f64) return Naive<double>(attention).backward(dout, dlse, forward);
  return Naive<float>(attention).backward(dout, dlse, forward);
}

// Scores and probabilities at the same time, plus the slopes of softcap.
size_t naive_forward_bytes(const Attention& attention) { return matrix_bytes(attention, 2 + (attention.softcap > 0)); }

// Probabilities, dP and dS at the same time, plus the dropped probabilities and the slopes of softcap.
size_t naive_backward_bytes(const Attention& attention) {
  return matrix_bytes(attention, 3 + (attention.dropout_p > 0) + (attention.softcap > 0));
}

}  // namespace cuflash::reference
