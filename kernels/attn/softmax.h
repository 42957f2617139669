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
  static constexpr float kRescaleThreshold = 8;
  // An exponent above this is known to less than 2^-3, and its error is that of a fused product: it is not computed as one
  // then, but from the difference of the scores, which is 0 where they are equal, however large.
  static constexpr float kLarge = 1 << 20;

  Real scale_log2;      // scores times this are powers of two
  Real row_max[kRows];  // -inf before the first visible score
  Real row_sum[kRows];  // this lane's share

  __device__ explicit Softmax(Real scale_log2) : scale_log2(scale_log2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) row_max[r] = minus_infinity<Real>(), row_sum[r] = 0;
  }

  // Moves the references where the new scores ask for it; `output` is what was summed under the old ones.
  template <int kTiles, int kOutputTiles>
  __device__ __forceinline__ void update(const Accumulator<Real> (&s)[kRowTiles][kTiles],
                                         Accumulator<Real> (&output)[kRowTiles][kOutputTiles]) {
    update_max(s, [&](int r, Real correction) { rescale(output, r, correction); });
  }

  // Without an output: whether some row of the warp has asked for another reference. moved(r, shrink) is then called for
  // every row, with what has to become of its output.
  template <int kTiles, class OnRescale>
  __device__ __forceinline__ bool update_max(const Accumulator<Real> (&s)[kRowTiles][kTiles], OnRescale&& on_rescale) {
    Real largest[kRows];
    bool exceeded = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Real column[2];  // two chains: one would wait for itself
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        column[e] = s[r / 2][0].x[r % 2 * 2 + e];
#pragma unroll
        for (int n = 1; n < kTiles; ++n) column[e] = larger(column[e], s[r / 2][n].x[r % 2 * 2 + e]);
      }
      largest[r] = larger(column[0], column[1]);
      exceeded |= (largest[r] - row_max[r]) * scale_log2 > kRescaleThreshold;  // false for -inf - -inf
    }
    if (!__any_sync(0xffffffffu, exceeded)) return false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = larger(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 1));
      largest[r] = larger(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 2));
      // A row that does not ask for it keeps its reference: what it sees decides alone about its bits.
      const bool moves = (largest[r] - row_max[r]) * scale_log2 > kRescaleThreshold;
      const Real correction = moves ? exp2_of((row_max[r] - largest[r]) * scale_log2) : Real(1);
      if (moves) row_max[r] = largest[r];
      row_sum[r] *= correction;
      on_rescale(r, correction);
    }
    return true;
  }
  template <int kOutputTiles>
  static __device__ __forceinline__ void rescale(Accumulator<Real> (&output)[kRowTiles][kOutputTiles], int r,
                                                 Real correction) {
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n)
      output[r / 2][n].x[r % 2 * 2] *= correction, output[r / 2][n].x[r % 2 * 2 + 1] *= correction;
  }

  // Scores become weights and are added up.
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles]) {
    Real shift[kRows];
    const bool large = compute_shifts(shift);
    exponentiate(s, shift, large);
  }
  // shifts, large: of find_shifts, which depend on nothing but the references.
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles], const Real (&shifts)[kRows],
                                               bool large) {
    Real shift[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) shift[r] = shifts[r];
    if (large) subtract(s, shift);
    Real column[kRows][2];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          Real& x = s[r / 2][n].x[r % 2 * 2 + e];
          x = exp2_of(x * scale_log2 + shift[r]);
          column[r][e] = n == 0 ? x : column[r][e] + x;
        }
#pragma unroll
    for (int r = 0; r < kRows; ++r) row_sum[r] += column[r][0] + column[r][1];
  }
  // What is added to scores times the factor; whether some of it is large.
  __device__ __forceinline__ bool compute_shifts(Real (&shift)[kRows]) const {
    bool large = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      shift[r] = row_max[r] == minus_infinity<Real>() ? Real(0) : -row_max[r] * scale_log2;  // -inf - -inf is NaN
      large |= is_large(shift[r]);
    }
    return large;
  }

  static __device__ __forceinline__ bool is_large(Real exponent) { return fabs(exponent) > kLarge; }

  // The four lanes of a row add their shares.
  __device__ __forceinline__ void reduce_row_sum() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 1);
      row_sum[r] += __shfl_xor_sync(0xffffffffu, row_sum[r], 2);
    }
  }

 private:
  template <int kTiles>
  __device__ __forceinline__ void subtract(Accumulator<Real> (&s)[kRowTiles][kTiles], Real (&shift)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool large = is_large(shift[r]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[r / 2][n].x[r % 2 * 2 + e] -= large ? row_max[r] : Real(0);
      if (large) shift[r] = 0;
    }
  }
};

// A Softmax that keeps what follows from its references, which seldom move. All lanes of a warp take the same branches.
template <class Real, int kRowTiles>
struct CachedShiftSoftmax : Softmax<Real, kRowTiles> {
  using Base = Softmax<Real, kRowTiles>;
  Real shift[Base::kRows];
  bool large = false;

  __device__ explicit CachedShiftSoftmax(Real scale_log2) : Base(scale_log2) {
#pragma unroll
    for (int r = 0; r < Base::kRows; ++r) shift[r] = 0;
  }
  template <int kTiles, class OnRescale>
  __device__ __forceinline__ bool update_max(const Accumulator<Real> (&s)[kRowTiles][kTiles], OnRescale&& on_rescale) {
    if (!Base::update_max(s, on_rescale)) return false;
    large = __any_sync(0xffffffffu, this->compute_shifts(shift));
    return true;
  }
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles]) {
    Base::exponentiate(s, shift, large);
  }
};

// A row with its sink: the largest score of both, the sum of exponentials relative to it, and the correction of what was
// summed relative to row_max. A row that sees no key has an o_scale of 0 and, without a sink, an LSE of -inf.
template <class Real>
struct RowTotal {
  Real top, sum, correction;

  // row_max, row_sum: of a Softmax after reduce_row_sum. scale: scores times this are those of the contract.
  __device__ __forceinline__ static RowTotal of(Real row_max, Real row_sum, Real scale, Real sink) {
    constexpr Real kToPower = static_cast<Real>(kLog2e);
    const Real top = row_max == minus_infinity<Real>() ? minus_infinity<Real>() : row_max * scale;
    if (sink > minus_infinity<Real>()) {
      const Real higher = larger(top, sink);
      const Real correction = exp2_of((top - higher) * kToPower);  // 0 where no key was visible
      return {higher, row_sum * correction + exp2_of((sink - higher) * kToPower), correction};
    }
    return {top, sink != sink ? sink : row_sum, Real(1)};
  }
  // The factor of the output row. keep: the factor of dropout.
  __device__ __forceinline__ Real o_scale(Real keep = 1) const { return sum == 0 ? Real(0) : correction * keep / sum; }
  __device__ __forceinline__ Real lse() const {
    return sum == 0 ? minus_infinity<Real>() : top + log2_of(sum) * static_cast<Real>(kLn2);
  }
};

}  // namespace cuflash
