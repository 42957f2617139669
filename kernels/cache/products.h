// The two products of one warp: its rows, blocks of 16, with its keys, and the weights of these keys with the values. What
// is loaded of keys and values serves all blocks.
#pragma once

#include "tile/operand.h"

namespace cuflash {

// Adds the products of columns [first, first + kCount) to the scores of keys [key, key + 8 * kTiles) of the tile.
template <int kCount, Element E, class QTile, class KTile, class Real, int kBlocks, int kTiles>
__device__ __forceinline__ void multiply_columns(Accumulator<Real> (&s)[kBlocks][kTiles], QTile q, int row, KTile k,
                                                 int key, int first) {
  using Op = Operands<E>;
  constexpr int kSteps = kCount / Op::kDepth;
#pragma unroll(kSteps <= 16 && size_of(E) != 8 ? kSteps : 4)  // of f64 all operands would be loaded first
  for (int step = 0; step < kSteps; ++step) {
    const int column = first + step * Op::kDepth;
    typename Op::A queries[kBlocks];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) queries[m] = Op::load_a(q, row + m * 16, column);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      const typename Op::B keys = Op::load_b(k, key + n * 8, column);
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int t = 0; t < 2; ++t) Op::multiply(s[m][n + t], queries[m], keys, t);
    }
  }
}

template <int kDim, Element E, class QTile, class KTile, class Real, int kBlocks, int kTiles>
__device__ __forceinline__ void multiply_keys(Accumulator<Real> (&s)[kBlocks][kTiles], QTile q, int row, KTile k,
                                              int key) {
  constexpr int kAtOnce = sums_drift(E) ? kShortSum : kDim;
#pragma unroll
  for (int m = 0; m < kBlocks; ++m)
#pragma unroll
    for (int n = 0; n < kTiles; ++n) s[m][n] = {};
  multiply_columns<kAtOnce, E>(s, q, row, k, key, 0);
#pragma unroll 1
  for (int first = kAtOnce; first < kDim; first += kAtOnce) {
    Accumulator<Real> part[kBlocks][kTiles] = {};
    multiply_columns<kAtOnce, E>(part, q, row, k, key, first);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n) s[m][n] += part[m][n];
  }
}

// o += weights * values [key, key + 8 * kTiles) of the tile, columns from `column` on.
template <Element E, class VTile, class Real, int kBlocks, int kTiles, int kOutputTiles>
__device__ __forceinline__ void add_values(Accumulator<Real> (&o)[kBlocks][kOutputTiles],
                                           const Accumulator<Real> (&weights)[kBlocks][kTiles], VTile v, int key,
                                           int column) {
  using Op = Operands<E>;
  constexpr int kTilesPerStep = Op::kDepth / 8, kSteps = kTiles / kTilesPerStep;
  constexpr int kStepsAtOnce = sums_drift(E) && kTiles * 8 > kShortSum ? kShortSum / Op::kDepth : kSteps;
  static_assert(kSteps % kStepsAtOnce == 0);
#pragma unroll
  for (int first = 0; first < kSteps; first += kStepsAtOnce) {
    typename Op::A w[kBlocks][kStepsAtOnce];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int step = 0; step < kStepsAtOnce; ++step)
        w[m][step] = Op::from_accumulators(&weights[m][(first + step) * kTilesPerStep]);
#pragma unroll
    for (int d = 0; d < kOutputTiles; d += 2) {
      Accumulator<Real> part[kBlocks][2] = {};
#pragma unroll
      for (int step = 0; step < kStepsAtOnce; ++step) {
        const typename Op::B values = Op::load_b_transposed(v, key + (first + step) * Op::kDepth, column + d * 8);
#pragma unroll
        for (int m = 0; m < kBlocks; ++m)
#pragma unroll
          for (int t = 0; t < 2; ++t) Op::multiply(sums_drift(E) ? part[m][t] : o[m][d + t], w[m][step], values, t);
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        if constexpr (sums_drift(E)) o[m][d] += part[m][0], o[m][d + 1] += part[m][1];
    }
  }
}

}  // namespace cuflash
