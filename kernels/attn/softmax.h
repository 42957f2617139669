// Online softmax over the rows that a lane holds: two rows (r and r + 8) for every 16-row tile of its warp.
//
// The reference of a row follows its maximum lazily. Only when a score exceeds it by more than kSlack (in powers of two)
// are the sums rescaled; until then weights may reach 2^kSlack, which every element type and the sums hold exactly as
// well. That saves the exchange of maxima between lanes and the pass over the output in most steps.
#pragma once

#include "attn/score.h"
#include "tile/operand.h"

namespace cuflash {

template <class Real, int kRowTiles>
struct Softmax {
  static constexpr int kRows = 2 * kRowTiles;
  static constexpr float kSlack = 8;

  Real factor;           // scores times this are powers of two
  Real exponent[kRows];  // the reference, in powers of two; -inf before the first visible score
  Real sum[kRows];       // this lane's share

  __device__ explicit Softmax(Real factor) : factor(factor) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) exponent[r] = minus_infinity<Real>(), sum[r] = 0;
  }

  // Moves the references where the new scores ask for it; `output` is what was summed under the old ones.
  template <int kTiles, int kOutputTiles>
  __device__ __forceinline__ void follow(const Accumulator<Real> (&s)[kRowTiles][kTiles],
                                         Accumulator<Real> (&output)[kRowTiles][kOutputTiles]) {
    Real largest[kRows];
    bool exceeded = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = minus_infinity<Real>();
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        largest[r] = larger(largest[r], larger(s[r / 2][n].x[r % 2 * 2], s[r / 2][n].x[r % 2 * 2 + 1]));
      largest[r] *= factor;
      exceeded |= largest[r] > exponent[r] + kSlack;
    }
    if (!__any_sync(0xffffffffu, exceeded)) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = larger(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 1));
      largest[r] = larger(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 2));
      largest[r] = larger(largest[r], exponent[r]);
      const Real shrink = largest[r] == minus_infinity<Real>() ? Real(1) : exp2_of(exponent[r] - largest[r]);
      exponent[r] = largest[r];
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n)
        output[r / 2][n].x[r % 2 * 2] *= shrink, output[r / 2][n].x[r % 2 * 2 + 1] *= shrink;
    }
  }

  // Scores become weights and are added up.
  template <int kTiles>
  __device__ __forceinline__ void weigh(Accumulator<Real> (&s)[kRowTiles][kTiles]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const Real shift = exponent[r] == minus_infinity<Real>() ? Real(0) : -exponent[r];  // -inf - -inf is NaN
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          Real& x = s[r / 2][n].x[r % 2 * 2 + e];
          x = exp2_of(x * factor + shift);
          sum[r] += x;
        }
    }
  }

  // The four lanes of a row add their shares.
  __device__ __forceinline__ void gather() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    }
  }
};

}  // namespace cuflash
