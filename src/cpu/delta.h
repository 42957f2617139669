// delta = dot(dO, O) - dLSE of one row, which is subtracted from every dP of the row.
#pragma once

#include <cstdint>

#include "cpu/isa/kernels.h"
#include "problem/problem.h"

namespace cuflash::cpu {

// The dot product in double, because dP - delta cancels. Eight accumulators break the dependency chain.
template <class T>
double dot(const T* a, const T* b, int64_t count) {
  double sums[8] = {};
  int64_t n = 0;
  for (; n + 8 <= count; n += 8)
    for (int64_t k = 0; k < 8; ++k) sums[k] += static_cast<double>(a[n + k]) * static_cast<double>(b[n + k]);
  for (; n < count; ++n) sums[0] += static_cast<double>(a[n]) * static_cast<double>(b[n]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// staging must hold two rows.
template <class T, class E>
T row_delta(const BackwardProblem& p, const Kernels<T, E>& kernels, int64_t b, int64_t h, int64_t row, T* staging) {
  T* dout = staging + p.dim_v;
  kernels.load(p.o.data, p.o.dtype, p.o.at(b, h, row), p.dim_v, staging);
  kernels.load(p.dout.data, p.dout.dtype, p.dout.at(b, h, row), p.dim_v, dout);
  double delta = dot(staging, dout, p.dim_v);
  if (p.dlse) delta -= load_element(p.dlse.data, p.dlse.dtype, p.dlse.at(b, h, row));
  return static_cast<T>(delta);
}

}  // namespace cuflash::cpu
