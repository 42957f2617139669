// Online softmax over the rows of a lane: rows r and r + 8 of every 16-row tile of its warp.
//
// Rescaling is lazy. row_max follows the true maximum only when a score exceeds it by more than kRescaleThreshold, in
// powers of two; until then probabilities may reach 2^kRescaleThreshold, which every element type and the accumulators
// represent with the same relative precision. In most steps this saves the shuffles of the row maximum and the pass
// over the output accumulators.
#pragma once

#include "attn/score.h"
#include "tile/operand.h"

namespace cuflash {

// What scores lack to be comparable with those of other tiles: nothing, or a number for each row.
struct NoOffset {
  template <class Real>
  __device__ Real operator()(int, Real x) const {
    return x;
  }
};
template <class Real>
struct RowOffset {
  Real of_row[2];
  __device__ Real operator()(int r, Real x) const { return x + of_row[r]; }
};

template <class Real, int kRowTiles>
struct Softmax {
  static constexpr int kRows = 2 * kRowTiles;
  static constexpr float kRescaleThreshold = 8;
  // Above this magnitude the fused multiply-add yields an exponent that is accurate only to about 2^-3. The exponent is
  // then computed from the difference of the scores, which is exactly 0 for equal scores of any size.
  static constexpr float kLarge = 1 << 20;

  Real scale_log2;      // scores times this are exponents of 2
  Real row_max[kRows];  // lagging maximum; -inf before the first visible score
  Real row_sum[kRows];  // partial sum of this lane

  __device__ explicit Softmax(Real scale_log2) : scale_log2(scale_log2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) row_max[r] = minus_infinity<Real>(), row_sum[r] = 0;
  }

  // Updates row_max for the new scores and rescales `output`, which was accumulated under the old one.
  template <int kTiles, int kOutputTiles>
  __device__ __forceinline__ void update(const Accumulator<Real> (&s)[kRowTiles][kTiles],
                                         Accumulator<Real> (&output)[kRowTiles][kOutputTiles]) {
    update_max(s, [&](int r, Real correction) { rescale(output, r, correction); });
  }

  // The same without an output. Returns whether any row of the warp changed its row_max; on_rescale(r, correction) is
  // then called for every row with the factor of its output.
  template <int kTiles, class OnRescale, class Offset = NoOffset>
  __device__ __forceinline__ bool update_max(const Accumulator<Real> (&s)[kRowTiles][kTiles], OnRescale&& on_rescale,
                                             const Offset& offset = {}) {
    Real largest[kRows];
    bool exceeded = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Real column[2];  // two dependency chains instead of one
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        column[e] = s[r / 2][0].x[r % 2 * 2 + e];
#pragma unroll
        for (int n = 1; n < kTiles; ++n) column[e] = larger(column[e], s[r / 2][n].x[r % 2 * 2 + e]);
      }
      largest[r] = offset(r, larger(column[0], column[1]));
      exceeded |= (largest[r] - row_max[r]) * scale_log2 > kRescaleThreshold;  // false for -inf - -inf
    }
    if (!__any_sync(0xffffffffu, exceeded)) return false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = larger(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 1));
      largest[r] = larger(largest[r], __shfl_xor_sync(0xffffffffu, largest[r], 2));
      // A row below the threshold keeps its row_max, so that its bits depend on its own scores alone.
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

  // Replaces scores by exponentials and adds them to row_sum.
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles]) {
    Real shift[kRows];
    const bool large = compute_shifts(shift);
    exponentiate(s, shift, large);
  }
  // shifts and large come from compute_shifts and depend on row_max alone.
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
  // The addend of each row's exponent. Returns whether one of them is large.
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

  // All-reduce of row_sum over the four lanes of a row.
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

// A Softmax that caches the shifts, since row_max rarely changes. `large` is uniform over the warp.
template <class Real, int kRowTiles>
struct CachedShiftSoftmax : Softmax<Real, kRowTiles> {
  using Base = Softmax<Real, kRowTiles>;
  Real shift[Base::kRows];
  bool large = false;

  __device__ explicit CachedShiftSoftmax(Real scale_log2) : Base(scale_log2) {
#pragma unroll
    for (int r = 0; r < Base::kRows; ++r) shift[r] = 0;
  }
  template <int kTiles, class OnRescale, class Offset = NoOffset>
  __device__ __forceinline__ bool update_max(const Accumulator<Real> (&s)[kRowTiles][kTiles], OnRescale&& on_rescale,
                                             const Offset& offset = {}) {
    if (!Base::update_max(s, on_rescale, offset)) return false;
    large = __any_sync(0xffffffffu, this->compute_shifts(shift));
    return true;
  }
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles]) {
    Base::exponentiate(s, shift, large);
  }
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles],
                                               const RowOffset<Real>& offset) {
    Real shifts[Base::kRows];
#pragma unroll
    for (int r = 0; r < Base::kRows; ++r) {
      const bool none = this->row_max[r] == minus_infinity<Real>();
      shifts[r] = large ? shift[r] : none ? Real(0) : (offset.of_row[r] - this->row_max[r]) * this->scale_log2;
    }
    if (large) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[0][n].x[x] = offset(x / 2, s[0][n].x[x]);
    }
    Base::exponentiate(s, shifts, large);
  }
};

// A Softmax of bounded scores. row_max is a constant for which no probability overflows or underflows, so nothing is ever
// rescaled, and the exponentials of some scores overlap with the arithmetic of others.
template <class Real>
struct FixedMaxSoftmax : Softmax<Real, 1> {
  using Base = Softmax<Real, 1>;
  Real shift;

  __device__ FixedMaxSoftmax(Real scale_log2, Real fixed_max) : Base(scale_log2), shift(-fixed_max * scale_log2) {
    this->row_max[0] = this->row_max[1] = fixed_max;
  }
  // Replaces x by the exponential of score(x), 8 columns at a time.
  template <int kTiles, class Score>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[1][kTiles], Score&& score) {
    Real sum[4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const Real p = exp2_of(multiply_add(score(s[0][n].x[x]), this->scale_log2, shift));
        s[0][n].x[x] = p;
        sum[x] = n == 0 ? p : sum[x] + p;
      }
    this->row_sum[0] += sum[0] + sum[1], this->row_sum[1] += sum[2] + sum[3];
  }
  // A row without visible keys has the row_max of one.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (this->row_sum[r] == 0) this->row_max[r] = minus_infinity<Real>();
  }
};

// What the epilogue needs of a row, sink included: its LSE and the scale of its output.
template <class Real>
struct FinalizedRow {
  Real lse, o_scale;
};
// row_max and row_sum come from a Softmax after reduce_row_sum; scale converts scores to the units of the sink; keep is
// 1 / (1 - dropout_p) if the call has dropout. A row without visible keys has an o_scale of 0 and, without a sink, an LSE
// of -inf. RowTotal of kv/split_reduce.h computes the same in two steps.
template <class Real>
__device__ __forceinline__ FinalizedRow<Real> finalize_row(Real row_max, Real row_sum, Real scale, Real sink,
                                                           Real keep) {
  constexpr Real kToPower = static_cast<Real>(kLog2e);
  const bool none = row_max == minus_infinity<Real>();
  Real top = none ? minus_infinity<Real>() : row_max * scale;
  Real correction = 1;
  if (sink > minus_infinity<Real>()) {
    const Real higher = larger(top, sink);
    correction = exp2_of((top - higher) * kToPower);  // 0 where no key was visible
    row_sum = row_sum * correction + exp2_of((sink - higher) * kToPower);
    top = higher;
  } else if (sink != sink) {
    row_sum = sink;
  }
  const Real lse = top + log2_of(row_sum) * static_cast<Real>(kLn2);
  return {row_sum == 0 ? minus_infinity<Real>() : lse, row_sum == 0 ? Real(0) : correction * keep / row_sum};
}

}  // namespace cuflash
