// Mainloop products of one warp with mma.sync: S = Q K^T for its 16 rows and its keys, and O += P V.
#pragma once

#include "tile/operand.h"

namespace cuflash {

// Adds the products over columns [first, first + kCount) to the scores of keys [key, key + 8 * kTiles) of the tile.
template <int kCount, Element E, class QTile, class KTile, class Real, int kTiles>
__device__ __forceinline__ void multiply_columns(Accumulator<Real> (&s)[1][kTiles], QTile q, int row, KTile k, int key,
                                                 int first) {
  using Op = Operands<E>;
  constexpr int kSteps = kCount / Op::kDepth;
#pragma unroll(kSteps <= 16 && size_of(E) != 8 ? kSteps : 4)  // fully unrolled, f64 would load all operands first
  for (int step = 0; step < kSteps; ++step) {
    const int column = first + step * Op::kDepth;
    const typename Op::A queries = Op::load_a(q, row, column);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      const typename Op::B keys = Op::load_b(k, key + n * 8, column);
#pragma unroll
      for (int t = 0; t < 2; ++t) Op::multiply(s[0][n + t], queries, keys, t);
    }
  }
}

// With few keys there are few chains of dependent mma instructions. A second accumulator doubles the number of chains
// and halves their length.
template <int kDim, Element E, class QTile, class KTile, class Real, int kTiles>
__device__ __forceinline__ void multiply_keys_by_halves(Accumulator<Real> (&s)[1][kTiles], QTile q, int row, KTile k,
                                                        int key) {
  constexpr int kDepth = Operands<E>::kDepth;
  Accumulator<Real> other[1][kTiles] = {};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) s[0][n] = {};
#pragma unroll
  for (int column = 0; column < kDim / 2; column += kDepth) {
    multiply_columns<kDepth, E>(s, q, row, k, key, column);
    multiply_columns<kDepth, E>(other, q, row, k, key, kDim / 2 + column);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) s[0][n] += other[0][n];
}

template <int kDim, Element E, class QTile, class KTile, class Real, int kTiles>
__device__ __forceinline__ void multiply_keys(Accumulator<Real> (&s)[1][kTiles], QTile q, int row, KTile k, int key) {
  if constexpr (kTiles <= 2 && size_of(E) == 2 && kDim % 64 == 0 && kDim <= 128)
    return multiply_keys_by_halves<kDim, E>(s, q, row, k, key);
  constexpr int kAtOnce = sums_drift(E) ? kShortSum : kDim;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) s[0][n] = {};
  multiply_columns<kAtOnce, E>(s, q, row, k, key, 0);
#pragma unroll 1
  for (int first = kAtOnce; first < kDim; first += kAtOnce) {
    Accumulator<Real> part[1][kTiles] = {};
    multiply_columns<kAtOnce, E>(part, q, row, k, key, first);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) s[0][n] += part[0][n];
  }
}

// o += weights * values [key, key + 8 * kTiles) of the tile, columns from `column` on.
template <Element E, class VTile, class Real, int kTiles, int kOutputTiles>
__device__ __forceinline__ void add_values(Accumulator<Real> (&o)[1][kOutputTiles],
                                           const Accumulator<Real> (&weights)[1][kTiles], VTile v, int key,
                                           int column) {
  using Op = Operands<E>;
  constexpr int kTilesPerStep = Op::kDepth / 8, kSteps = kTiles / kTilesPerStep;
  constexpr int kStepsAtOnce = sums_drift(E) && kTiles * 8 > kShortSum ? kShortSum / Op::kDepth : kSteps;
  static_assert(kSteps % kStepsAtOnce == 0);
#pragma unroll
  for (int first = 0; first < kSteps; first += kStepsAtOnce) {
    typename Op::A w[kStepsAtOnce];
#pragma unroll
    for (int step = 0; step < kStepsAtOnce; ++step)
      w[step] = Op::from_accumulators(&weights[0][(first + step) * kTilesPerStep]);
#pragma unroll
    for (int d = 0; d < kOutputTiles; d += 2) {
      Accumulator<Real> part[2] = {};
#pragma unroll
      for (int step = 0; step < kStepsAtOnce; ++step) {
        const typename Op::B values = Op::load_b_transposed(v, key + (first + step) * Op::kDepth, column + d * 8);
#pragma unroll
        for (int t = 0; t < 2; ++t) Op::multiply(sums_drift(E) ? part[t] : o[0][d + t], w[step], values, t);
      }
      if constexpr (sums_drift(E)) o[0][d] += part[0], o[0][d + 1] += part[1];
    }
  }
}

}  // namespace cuflash
