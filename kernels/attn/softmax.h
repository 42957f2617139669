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

// The offset that makes the scores of a tile comparable with those of other tiles: none, or one number per row.
struct NoOffset {
  template <class Real>
  __device__ Real operator()(int, Real x) const {
    return x;
  }
  // The addend of row r's exponents.
  template <class Real>
  __device__ Real shift(int, Real shift_of_row, Real) const {
    return shift_of_row;
  }
  template <class Scores>
  __device__ NoOffset move_to(Scores&, bool, bool) const {
    return {};
  }
};
template <class Real>
struct RowOffset {
  Real of_row[2];
  __device__ Real operator()(int r, Real x) const { return x + of_row[r]; }
  __device__ Real shift(int r, Real shift_of_row, Real scale_log2) const {
    return multiply_add(of_row[r], scale_log2, shift_of_row);
  }
  // Adds the offset of some rows to their scores. Returns the offset of the others.
  template <int kTiles>
  __device__ __forceinline__ RowOffset move_to(Accumulator<Real> (&s)[1][kTiles], bool first, bool second) const {
    const RowOffset moved = {first ? of_row[0] : Real(0), second ? of_row[1] : Real(0)};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) s[0][n].x[x] += moved.of_row[x / 2];
    return {first ? Real(0) : of_row[0], second ? Real(0) : of_row[1]};
  }
};

// Applied to the packed probabilities of two adjacent tiles of 8 columns, n and n + 1. ApplyDropout
// (sm90/forward/score_coord.h) has the same interface.
struct NoDropout {
  __device__ void operator()(int, unsigned (&)[4]) const {}
  // A copy for a repeated step: it computes its inputs again, which the compiler would otherwise keep in registers for
  // that rare case.
  __device__ NoDropout again() const { return {}; }
};

// Probabilities of two adjacent tiles of 8 columns as an operand of the next product.
template <Element E>
__device__ __forceinline__ void pack_pair(const Accumulator<float>* pair, unsigned (&probs)[4]) {
  const auto operand = Operands<E>::from_accumulators(pair);
#pragma unroll
  for (int n = 0; n < 4; ++n) probs[n] = operand.r[n];
}

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

  // Updates row_max without rescaling an output. Returns whether any row of the warp changed its row_max; on_rescale(r,
  // correction) is then called for every row with the factor of its output.
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
      raise_row_max(r, largest[r], true, on_rescale);
    }
    return true;
  }
  // Raises row_max of row r to `largest` if that exceeds it by more than the threshold. A row below the threshold keeps
  // its row_max, so that its bits depend on its own scores alone.
  template <class OnRescale>
  __device__ __forceinline__ void raise_row_max(int r, Real largest, bool may_raise, OnRescale&& on_rescale) {
    const bool raises = may_raise && (largest - row_max[r]) * scale_log2 > kRescaleThreshold;
    const Real correction = raises ? exp2_of((row_max[r] - largest) * scale_log2) : Real(1);
    if (raises) row_max[r] = largest;
    row_sum[r] *= correction;
    on_rescale(r, correction);
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

  // exponentiate() of scores with an offset, which is added to the exponents. shifts and large come from
  // compute_shifts(). The offset of a row whose shift is large must be 0.
  template <int kTiles, class Offset>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[1][kTiles], const Real (&shifts)[kRows],
                                               bool large, const Offset& offset) {
    Real shift[kRows] = {shifts[0], shifts[1]};
    if (large) subtract(s, shift);
#pragma unroll
    for (int r = 0; r < kRows; ++r) shift[r] = offset.shift(r, shift[r], scale_log2);
    exponentiate(s, shift, false);
  }

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
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles], const NoOffset& = {}) {
    Base::exponentiate(s, shift, large);
  }
  template <int kTiles>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[kRowTiles][kTiles],
                                               const RowOffset<Real>& offset) {
    // Only the offset of a row itself decides where it is added, so that no bit depends on other rows of the warp.
    if (!large) return Base::exponentiate(s, shift, false, offset);
    Base::exponentiate(s, shift, true, offset.move_to(s, Base::is_large(shift[0]), Base::is_large(shift[1])));
  }
};

// A Softmax of bounded scores. row_max is a constant for which no probability overflows or underflows, so nothing is
// ever rescaled, and the exponentials of some scores overlap with the arithmetic of others.
template <class Real>
struct FixedMaxSoftmax : Softmax<Real, 1> {
  using Base = Softmax<Real, 1>;
  Real shift;

  __device__ FixedMaxSoftmax(Real scale_log2, Real fixed_max) : Base(scale_log2), shift(-fixed_max * scale_log2) {
    this->row_max[0] = this->row_max[1] = fixed_max;
  }
  // Replaces x by 2^exponent(x), 8 columns at a time. Exponents include the shift.
  template <int kTiles, class Exponent>
  __device__ __forceinline__ void exponentiate(Accumulator<Real> (&s)[1][kTiles], Exponent&& exponent) {
    Real sum[4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const Real p = exp2_of(exponent(s[0][n].x[x]));
        s[0][n].x[x] = p;
        sum[x] = n == 0 ? p : sum[x] + p;
      }
    this->row_sum[0] += sum[0] + sum[1], this->row_sum[1] += sum[2] + sum[3];
  }
  // Sets row_max to -inf in rows without visible keys, as in Softmax.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (this->row_sum[r] == 0) this->row_max[r] = minus_infinity<Real>();
  }
};

// A Softmax whose row_max is the maximum of the row's first visible key tile. It stays as it is while the probabilities
// of every later tile sum to at most kMaxSum, because they then keep their relative precision in E and in the
// accumulators. Such a step needs no maximum, and its exponentials do not wait for one. A row whose sum exceeds kMaxSum
// raises its row_max, as in Softmax. That needs the scores after the sums are known, so probabilities are packed into
// separate registers.
//
// Only the sums of a row decide whether it raises its row_max, and packed probabilities have the same bits either way.
// So the bits of a row do not depend on other rows of the warp.
template <Element E>
struct FirstMaxSoftmax : Softmax<float, 1> {
  using Base = Softmax<float, 1>;
  static constexpr float kMaxSum = E == Element::bf16 ? 1099511627776.0f : 32768.0f;  // 2^40, 2^15
  // Infinity for rows without a visible key so far and for rows with a large row_max: their sums then exceed kMaxSum,
  // and `repeat` computes them.
  float shift[2];

  __device__ explicit FirstMaxSoftmax(float scale_log2) : Base(scale_log2) { cache_shifts(); }

  __device__ __forceinline__ void cache_shifts() {
    Base::compute_shifts(shift);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (this->row_max[r] == minus_infinity<float>() || !(fabs(shift[r]) <= kLarge))
        shift[r] = -minus_infinity<float>();
  }

  // Processes the first key tile of a row. s may hold scores for its first keys only, if no other key is visible.
  // dropout: see NoDropout.
  template <int kTiles, int kSteps, class Dropout = NoDropout>
  __device__ __forceinline__ void start(Accumulator<float> (&s)[1][kTiles], unsigned (&probs)[kSteps][4],
                                        const Dropout& dropout = {}) {
    const auto ignore = [](int, float) {};
    Base::update_max(s, ignore);
    Base::exponentiate(s);
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      if (2 * n < kTiles) drop_and_pack(2 * n, &s[0][2 * n], probs[n], dropout);
      else probs[n][0] = probs[n][1] = probs[n][2] = probs[n][3] = 0;
    }
    cache_shifts();
  }
  // Processes a later key tile of a row. Returns whether the output must be rescaled. on_rescale and offset are those
  // of update_max.
  template <int kTiles, class OnRescale, class Offset = NoOffset, class Dropout = NoDropout>
  __device__ __forceinline__ bool step(Accumulator<float> (&s)[1][kTiles], unsigned (&probs)[kTiles / 2][4],
                                       OnRescale&& on_rescale, const Offset& offset = {}, const Dropout& dropout = {}) {
    float column[4];
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      Accumulator<float> pair[2];
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const float p =
            exp2_of(s[0][n + x / 4].x[x % 4] * scale_log2 + offset.shift(x % 4 / 2, shift[x % 4 / 2], scale_log2));
        pair[x / 4].x[x % 4] = p;
        column[x % 4] = n + x / 4 == 0 ? p : column[x % 4] + p;
      }
      drop_and_pack(n, pair, probs[n / 2], dropout);
    }
    const float sum[2] = {column[0] + column[1], column[2] + column[3]};
    const bool exceeds[2] = {!(sum[0] <= kMaxSum), !(sum[1] <= kMaxSum)};
    if (__any_sync(0xffffffffu, exceeds[0] || exceeds[1])) {
      repeat(s, exceeds, on_rescale, offset);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) drop_and_pack(n, &s[0][n], probs[n / 2], dropout.again());
      return true;
    }
    this->row_sum[0] += sum[0], this->row_sum[1] += sum[1];
    return false;
  }

 private:
  // Applies dropout to tiles n and n + 1 and packs them.
  template <class Dropout>
  static __device__ __forceinline__ void drop_and_pack(int n, const Accumulator<float>* tiles, unsigned (&probs)[4],
                                                       const Dropout& dropout) {
    pack_pair<E>(tiles, probs);
    dropout(n, probs);
  }
  // rest: offsets that are not in the scores.
  template <int kTiles>
  __device__ __forceinline__ void exponentiate_again(Accumulator<float> (&s)[1][kTiles], const NoOffset&) {
    Base::exponentiate(s);
  }
  template <int kTiles>
  __device__ __forceinline__ void exponentiate_again(Accumulator<float> (&s)[1][kTiles], const RowOffset<float>& rest) {
    float shifts[2];
    const bool large = Base::compute_shifts(shifts);
    Base::exponentiate(s, shifts, large, rest);
  }
  // Repeats a step after raising row_max of the rows whose sums exceed kMaxSum. The other rows of the warp get the bits
  // of the step again, so their offset stays in the exponents.
  template <int kTiles, class OnRescale, class Offset>
  __device__ __forceinline__ void repeat(Accumulator<float> (&s)[1][kTiles], const bool (&exceeds)[2],
                                         OnRescale&& on_rescale, const Offset& offset) {
    int row_exceeds[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = minus_infinity<float>();
#pragma unroll
      for (int n = 0; n < 2 * kTiles; ++n) largest = larger(largest, s[0][n / 2].x[r * 2 + n % 2]);
      largest = offset(r, largest);  // differs between the lanes of a row
      largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      row_exceeds[r] = exceeds[r];
      row_exceeds[r] |= __shfl_xor_sync(0xffffffffu, row_exceeds[r], 1);
      row_exceeds[r] |= __shfl_xor_sync(0xffffffffu, row_exceeds[r], 2);
      this->raise_row_max(r, largest, row_exceeds[r] != 0, on_rescale);
    }
    exponentiate_again(s, offset.move_to(s, row_exceeds[0] != 0, row_exceeds[1] != 0));
    cache_shifts();
  }
};

// What the epilogue needs of a row, sink included: its LSE and the scale of its output.
template <class Real>
struct FinalizedRow {
  Real lse, o_scale;
};
// row_max and row_sum come from a Softmax after reduce_row_sum; scale converts scores to the units of the sink; keep is
// 1 / (1 - dropout_p) if the call has dropout. A row without visible keys has an o_scale of 0 and, without a sink, an
// LSE of -inf. RowTotal of kv/split_reduce.h computes the same in two steps.
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
