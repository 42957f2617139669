// Score options, masks and dropout, applied to the score accumulators of a lane: kRowTiles tiles of 16 rows by kTiles
// tiles of 8 columns (tile/operand.h).
#pragma once

#include "attn/score.h"
#include "attn/visited_tiles.h"
#include "tile/operand.h"

namespace cuflash {

// Column of element e of tile n, within the score tile.
__device__ __forceinline__ int lane_column(int n, int e) { return n * 8 + accumulator_column() + e; }

// First row and column of a lane within the tile.
struct LaneCoord {
  int row, column;
};

// Bias and mask tensor of two adjacent tiles of 8 columns, loaded element by element from global memory. `tile` is one
// of the two, r one of the lane's two rows, e one of its two columns.
template <class Options>
struct GlobalBiasMaskPair {
  using Real = typename Options::Real;

  const Options& options;
  int i, j;  // query and key of the lane's first element

  __device__ int row(int r) const { return i + 8 * r; }
  __device__ int column(int tile, int e) const { return j + 8 * tile + e; }
  __device__ bool exists(int tile, int r, int e) const {
    return row(r) < options.sequence.len_q && column(tile, e) < options.sequence.len_k;
  }
  __device__ __forceinline__ Real bias(int tile, int r, int e) const {
    return options.has_bias() && exists(tile, r, e) ? options.bias(row(r), column(tile, e)) : Real(0);
  }
  __device__ __forceinline__ bool unmasked(int tile, int r, int e) const {
    return options.unmasked(row(r), column(tile, e), exists(tile, r, e));
  }
};
template <class Options>
struct GlobalBiasMask {
  const Options& options;
  int i, j;  // query and key of the lane's first element of the tile

  // Bias and mask of tiles n and n + 1 of row tile m.
  __device__ __forceinline__ GlobalBiasMaskPair<Options> pair(int m, int n) const {
    return {options, i + 16 * m, j + 8 * n};
  }
};

// Replaces dot products by the arguments of the fast tanh. Returns whether all arguments of the warp are in the range
// of its polynomial.
template <class Options, int kRowTiles, int kTiles>
__device__ __forceinline__ bool to_arguments(Accumulator<float> (&s)[kRowTiles][kTiles], const Options& options) {
  unsigned bits = 0;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        s[m][n].x[x] = options.argument(s[m][n].x[x]);
        bits |= __float_as_uint(s[m][n].x[x]);
      }
  return !__any_sync(0xffffffffu, (bits & kBeyondTanhRange) != 0);
}

// The largest magnitude among this lane's scores. NaN never wins.
template <int kTiles>
__device__ __forceinline__ float largest_magnitude(const Accumulator<float> (&s)[1][kTiles]) {
  float largest[4] = {};
#pragma unroll
  for (int n = 0; n < 4 * kTiles; ++n) largest[n % 4] = larger(largest[n % 4], fabs(s[0][n / 4].x[n % 4]));
  return larger(larger(largest[0], largest[1]), larger(largest[2], largest[3]));
}

// Replaces dot products by tanh. Skips the exponentials if the warp needs none.
template <class Options, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void apply_softcap(Accumulator<Real> (&s)[kRowTiles][kTiles], const Options& options) {
  const auto replace = [&](auto&& function) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[m][n].x[x] = function(s[m][n].x[x]);
  };
  if (!options.has_softcap()) return;
  if constexpr (kFastTanh<Options::kElement>) {
    if (to_arguments(s, options)) return replace([](float x) { return tanh_in_range(x); });
  } else {
    replace([&](Real dot) { return options.argument(dot); });
  }
  replace([&](Real x) { return options.tanh_value(x); });
}

// Selects -inf for the pairs that lengths and window hide.
template <int kTileQ, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void hide(Accumulator<Real> (&s)[kRowTiles][kTiles],
                                     const PositionMask<kTileQ, kTiles * 8>& mask) {
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r)
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Real& x = s[r / 2][n].x[r % 2 * 2 + e];
        x = mask.sees(r / 2 * 16 + r % 2 * 8, n * 8 + e) ? x : minus_infinity<Real>();
      }
}

// hide() with one comparison per pair instead of two, unless the window's left edge crosses the lane's columns.
template <int kTileQ, int kTiles>
__device__ __forceinline__ void hide_by_limit(Accumulator<float> (&s)[1][kTiles],
                                              const PositionMask<kTileQ, kTiles * 8>& mask) {
  if (mask.low > -8) return hide(s, mask);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int limit = min(mask.high + 8 * r, mask.length);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (n * 8 + e >= limit) s[0][n].x[r * 2 + e] = minus_infinity<float>();
  }
}

// Adds ALiBi and bias, and selects -inf for the pairs that the mask tensor or, with kApplyMask, lengths and window
// hide.
template <bool kApplyMask, int kTileQ, class Options, class BiasMask, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void add_terms(Accumulator<Real> (&s)[kRowTiles][kTiles], const Options& options,
                                          const BiasMask& bias_mask, const PositionMask<kTileQ, kTiles * 8>& mask,
                                          int first_distance) {
  static_assert(kTiles % 2 == 0);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    // Eight rows down is as far from the diagonal as eight columns to the left, so both rows of a lane share penalties.
    // Distances are exact.
    const Real distance = static_cast<Real>(first_distance + m * 16);
    Real penalty[3][2] = {};
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      if constexpr (Options::kHasAlibi) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          penalty[0][e] = n == 0 ? options.penalty(distance + static_cast<Real>(8 - e)) : penalty[2][e];
          penalty[1][e] = options.penalty(distance - static_cast<Real>(n * 8 + e));
          penalty[2][e] = options.penalty(distance - static_cast<Real>(n * 8 + 8 + e));
        }
      }
      const auto pair = bias_mask.pair(m, n);
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int tile = x / 4, r = x / 2 % 2, e = x % 2;
        Real& score = s[m][n + tile].x[2 * r + e];
        Real bias = 0;
        if constexpr (Options::kHasBias) bias = pair.bias(tile, r, e);
        score = options.score(score, penalty[tile + 1 - r][e], bias);
        bool visible = !kApplyMask || mask.sees(m * 16 + r * 8, (n + tile) * 8 + e);
        if constexpr (Options::kHasMask) visible = visible && pair.unmasked(tile, r, e);
        score = visible ? score : minus_infinity<Real>();
      }
    }
  }
}

// Whether all columns of a tile are on one side of the diagonal, or on it, for both rows of every lane of the warp.
// first_distance: position of the lane's first row minus that of its first column.
template <int kTiles>
__device__ __forceinline__ bool is_left_of_diagonal(int first_distance) {
  return !__any_sync(0xffffffffu, first_distance < 8 * kTiles - 7);
}
__device__ __forceinline__ bool is_right_of_diagonal(int first_distance) {
  return !__any_sync(0xffffffffu, first_distance > -8);
}

// Subtracts ALiBi from a tile on one side of the diagonal, where a penalty is linear in the column: its multiple of the
// slope, counted from the lane's column next to the diagonal, is an immediate operand. The part that a row has in
// common is left to the softmax: add `offset` to all scores of row r.
template <bool kLeft, class Options, int kTiles>
__device__ __forceinline__ void add_linear_penalties(Accumulator<float> (&s)[1][kTiles], const Options& options,
                                                     int first_distance, float (&offset)[2]) {
  constexpr int kLast = 8 * kTiles - 7;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const int column = 8 * n + x % 2;
      s[0][n].x[x] = multiply_add(-options.slope, static_cast<float>(kLeft ? kLast - column : column), s[0][n].x[x]);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    offset[r] = -options.penalty(static_cast<float>(first_distance + 8 * r - (kLeft ? kLast : 0)));
}

// Applies the options and then the masks. Masks select, so a hidden score may hold any value. kApplyMask: lengths or
// window may hide a pair of this tile. kTileQ: number of rows from q_first on. bias_mask: bias and mask tensor of the
// tile.
template <bool kApplyMask, int kTileQ, class Options, class BiasMask, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void modify_and_mask(Accumulator<Real> (&s)[kRowTiles][kTiles], const AttentionParams& a,
                                                const Sequence& sequence, const Options& options,
                                                const BiasMask& bias_mask, LaneCoord lane, int q_first, int k_first) {
  if constexpr (Options::kHasSoftcap) apply_softcap(s, options);
  constexpr bool kHidesOnly = (Options::kIsDot || Options::kIsTanh) && !Options::kHasMask;
  if constexpr (kApplyMask || !kHidesOnly) {
    const PositionMask<kTileQ, kTiles * 8> mask(a, sequence, q_first, k_first, lane.row, lane.column);
    if constexpr (kHidesOnly) hide(s, mask);
    else
      add_terms<kApplyMask, kTileQ>(s, options, bias_mask, mask,
                                    static_cast<int>(q_first + lane.row + sequence.shift - k_first - lane.column));
  }
}
template <bool kApplyMask, int kTileQ, class Options, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void modify_and_mask(Accumulator<Real> (&s)[kRowTiles][kTiles], const AttentionParams& a,
                                                const Sequence& sequence, const Options& options, LaneCoord lane,
                                                int q_first, int k_first) {
  const GlobalBiasMask<Options> bias_mask{options, q_first + lane.row, k_first + lane.column};
  modify_and_mask<kApplyMask, kTileQ>(s, a, sequence, options, bias_mask, lane, q_first, k_first);
}

// q_first, k_first: first query and key of the tile in which `lane` counts.
template <class Options, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void apply_dropout(Accumulator<Real> (&probs)[kRowTiles][kTiles], const Options& options,
                                              LaneCoord lane, int q_first, int k_first) {
  if constexpr (Options::kHasDropout) {
    if (!options.has_dropout()) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        const DropoutGroup group = options.dropout_group(q_first + lane.row, k_first + lane.column, m * 8, n / 2 * 4);
#pragma unroll
        for (int x = 0; x < 8; ++x)
          if (!options.keeps(group, x / 2 % 2, x / 4 * 2 + x % 2)) probs[m][n + x / 4].x[x % 4] = 0;
      }
  }
}

}  // namespace cuflash
