#include "oracle.h"

#include <cmath>
#include <limits>

#include "inputs.h"
#include "softmax_row.h"

namespace cuflash::reference {

namespace {

// o_i = sum over visible j of drop(p_ij) * v_j
std::vector<double> output_row(const Inputs& in, const SoftmaxRow& row, const double* v) {
  std::vector<double> o(static_cast<size_t>(in.dim_v), 0);
  if (std::isinf(row.lse) && row.lse < 0) return o;
  std::vector<CompensatedSum> sums(o.size());
  for (size_t n = 0; n < row.keys.size(); ++n) {
    const double* v_j = v + row.keys[n] * in.dim_v;
    for (size_t d = 0; d < o.size(); ++d) sums[d].add(row.p[n] * row.keep[n] * v_j[d]);
  }
  for (size_t d = 0; d < o.size(); ++d) o[d] = sums[d].value();
  return o;
}

void store(const Inputs& in, const Head& head, int64_t i, const SoftmaxRow& row, const std::vector<double>& o,
           Forward& result) {
  std::copy(o.begin(), o.end(), result.o.begin() + in.q_rows(head)(i) * in.dim_v);
  result.lse[static_cast<size_t>(in.lse_rows(head)(i))] = row.lse;
}

// y += a * x
void add_scaled(double* y, double a, const double* x, int64_t count) {
  for (int64_t d = 0; d < count; ++d) y[d] += a * x[d];
}

void backward_head(const Inputs& in, const Head& head, const ConstTensor& dout, const ConstTensor& dlse,
                   Backward& result, Forward* forward) {
  const auto q = in.load_q<double>(head), k = in.load_k<double>(head), v = in.load_v<double>(head);
  const auto d_o = in.load_dout<double>(dout, head), d_lse = in.load_dlse<double>(dlse, head);
  const RowNumbers q_rows = in.q_rows(head), k_rows = in.k_rows(head);

  for (int64_t i = 0; i < head.len_q; ++i) {
    const double* q_i = q.data() + i * in.dim;
    const double* do_i = d_o.data() + i * in.dim_v;
    const SoftmaxRow row = softmax_row(in, head, i, q_i, k.data());
    const std::vector<double> o = output_row(in, row, v.data());
    if (forward) store(in, head, i, row, o, *forward);
    if (std::isinf(row.lse) && row.lse < 0) continue;  // the query sees no key: its gradients are 0

    // 1. delta_i = dot(dO_i, O_i) - dLSE_i
    const double delta = dot(do_i, o.data(), in.dim_v) - d_lse[static_cast<size_t>(i)];

    // 2. dSink = -sum over rows of exp(sink - LSE) * delta
    if (in.attention.sink) result.dsink[static_cast<size_t>(head.h)] -= std::exp(head.sink - row.lse) * delta;

    for (size_t n = 0; n < row.keys.size(); ++n) {
      const int64_t j = row.keys[n];
      const double dropped_p = row.p[n] * row.keep[n];

      // 3. dV_j += drop(P_ij) * dO_i
      add_scaled(result.dv.data() + k_rows(j) * in.dim_v, dropped_p, do_i, in.dim_v);

      // 4. dP = dO V^T, through dropout;  dS = P * (dP - delta)
      const double dp = row.keep[n] == 0 ? 0 : row.keep[n] * dot(do_i, v.data() + j * in.dim_v, in.dim_v);
      double ds = row.p[n] * (dp - delta);

      // 5. through bias, whose slope is 1, ALiBi, which has no gradient, and softcap
      if (in.attention.bias) result.dbias[static_cast<size_t>(in.dbias_index(head, i, j))] += ds;
      ds *= row.cap_slope[n];

      // 6. dQ_i += scale * dS_ij * K_j,  dK_j += scale * dS_ij * Q_i
      add_scaled(result.dq.data() + q_rows(i) * in.dim, in.scale * ds, k.data() + j * in.dim, in.dim);
      add_scaled(result.dk.data() + k_rows(j) * in.dim, in.scale * ds, q_i, in.dim);
    }
  }
}

}  // namespace

Forward oracle_forward(const Attention& attention) {
  const Inputs in(attention);
  Forward result = in.empty_forward();
  for (const Head& head : in.heads) {
    const auto q = in.load_q<double>(head), k = in.load_k<double>(head), v = in.load_v<double>(head);
    for (int64_t i = 0; i < head.len_q; ++i) {
      const SoftmaxRow row = softmax_row(in, head, i, q.data() + i * in.dim, k.data());
      store(in, head, i, row, output_row(in, row, v.data()), result);
    }
  }
  return result;
}

Backward oracle_backward(const Attention& attention, const ConstTensor& dout, const ConstTensor& dlse,
                         Forward* forward) {
  const Inputs in(attention);
  if (forward) *forward = in.empty_forward();
  Backward result = in.empty_backward();
  for (const Head& head : in.heads) backward_head(in, head, dout, dlse, result, forward);
  return result;
}

}  // namespace cuflash::reference
