#include "softmax_row.h"

#include <cmath>
#include <limits>

namespace cuflash::reference {

SoftmaxRow softmax_row(const Inputs& in, const Head& head, int64_t i, const double* q_i, const double* k) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  SoftmaxRow row;

  // 6. Visibility, first: no later pass touches a hidden key.
  std::vector<uint8_t> visible;
  in.visible_keys(head, i, visible);
  for (int64_t j = 0; j < head.len_k; ++j) {
    if (visible[static_cast<size_t>(j)]) row.keys.push_back(j);
  }
  const size_t count = row.keys.size();

  // 1. s = scale * dot(q_i, k_j)
  for (int64_t j : row.keys) row.score.push_back(in.scale * dot(q_i, k + j * in.dim, in.dim));

  // 2. softcap
  row.cap_slope.assign(count, 1);
  if (const double cap = in.attention.softcap; cap > 0) {
    for (size_t n = 0; n < count; ++n) {
      const double cosh = std::cosh(row.score[n] / cap);
      row.score[n] = capped(row.score[n], cap);
      row.cap_slope[n] = 1 / cosh / cosh;  // 1 - tanh^2 would underflow much earlier
    }
  }

  // 3. ALiBi
  for (size_t n = 0; n < count; ++n) row.score[n] -= in.alibi(head, i, row.keys[n]);

  // 4. bias
  for (size_t n = 0; n < count; ++n) row.score[n] += in.bias(head, i, row.keys[n]);

  // m = max over visible s and the sink. A NaN stays the maximum, so that it reaches every result of the row.
  row.max = head.sink;
  for (double s : row.score) {
    if (s > row.max || std::isnan(s)) row.max = s;
  }

  row.keep.reserve(count);
  for (int64_t j : row.keys) row.keep.push_back(in.keep(head, i, j));

  // No visible key, or only scores of -inf: nothing to divide by.
  if (row.max == kMinusInfinity) {
    row.p.assign(count, 0);
    row.lse = kMinusInfinity;
    return row;
  }

  // l = sum exp(s - m) + exp(sink - m), p = exp(s - m) / l, LSE = m + ln l
  CompensatedSum weights;
  weights.add(std::exp(head.sink - row.max));
  for (double s : row.score) weights.add(std::exp(s - row.max));
  const double l = weights.value();
  for (double s : row.score) row.p.push_back(std::exp(s - row.max) / l);
  row.lse = row.max + std::log(l);
  return row;
}

}  // namespace cuflash::reference
