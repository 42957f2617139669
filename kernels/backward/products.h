// The five products of backward, as one warp computes its part of them.
#pragma once

#include "backward/shape.h"

namespace cuflash {

// A weight of 0 hides a row only as long as the row is finite: 0 * NaN is NaN. In tiles where somebody must not see
// everything and something is not finite, such elements of K and Q are left out of the products with dS: whoever does see
// them has a dS that is NaN. dO has no such sign in P: its product is then summed without tensor cores, with a selection.
enum class Rows { any, finite_only };

__device__ __forceinline__ unsigned finite_pair(unsigned pair, unsigned exponent) {
  const unsigned low = (pair & exponent) == exponent ? 0u : pair & 0xffffu;
  return low | ((pair >> 16 & exponent) == exponent ? 0u : pair & 0xffff0000u);
}
template <Element E>
__device__ __forceinline__ typename Operands<E>::B finite_part(typename Operands<E>::B b) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int tile = n / 2, k = n % 2;
    if constexpr (size_of(E) == 2) {
      b.r[tile][k] = finite_pair(b.r[tile][k], E == Element::bf16 ? 0x7f80u : 0x7c00u);
    } else if constexpr (E == Element::f32) {
      const bool finite = (b.high[tile][k] & 0x7f800000u) != 0x7f800000u;
      b.high[tile][k] = finite ? b.high[tile][k] : 0u, b.low[tile][k] = finite ? b.low[tile][k] : 0u;
    } else {
      b.r[tile][k] = b.r[tile][k] - b.r[tile][k] == 0.0 ? b.r[tile][k] : 0.0;
    }
  }
  return b;
}

// c [key][query] += rows of x times rows of y: S^T = K Q^T, dP^T = V dO^T.
template <BackwardConfig C, Element E, int kKeys, int kQueries, int kColumns>
__device__ __forceinline__ void multiply_rows(typename Shape<C>::Sum (&c)[Shape<C>::kKeyTiles][Shape<C>::kQueryTiles],
                                              Tile<E, kKeys, kColumns> x, int first_key, Tile<E, kQueries, kColumns> y,
                                              int first_query) {
  using S = Shape<C>;
  using Ops = typename S::Ops;
  constexpr int kSteps = kColumns / Ops::kDepth,
                kUnrolled = kSteps > 16 ? 8 : kSteps;  // more only takes time to compile
#pragma unroll kUnrolled
  for (int k = 0; k < kColumns; k += Ops::kDepth) {
    typename Ops::A a[S::kKeyTiles];
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m) a[m] = Ops::load_a(x, first_key + 16 * m, k);
#pragma unroll
    for (int n = 0; n < S::kQueryTiles; n += 2) {
      const typename Ops::B b = Ops::load_b(y, first_query + 8 * n, k);
#pragma unroll
      for (int m = 0; m < S::kKeyTiles; ++m) {
        Ops::multiply(c[m][n], a[m], b, 0);
        Ops::multiply(c[m][n + 1], a[m], b, 1);
      }
    }
  }
}

// c [row][column] += sum over k of weights [row][k] * rows [k][column]: dV += P^T dO, dK += dS^T Q, dQ = dS K. The weights
// come as operands, 16 rows and kDepth of k at a time. The blocks of 16 columns are dealt out to kWarps warps; this one
// has those from first_block on.
template <int kSteps, int kWarps, Rows kRows, Element E, int kTiles, int kColumnTiles, int kAllRows, int kColumns,
          class Weights>
__device__ __forceinline__ void multiply_weights(Accumulator<RealOf<E>> (&c)[kTiles][kColumnTiles],
                                                 Tile<E, kAllRows, kColumns> rows, int first_k, int first_block,
                                                 Weights weights) {
  using Ops = Operands<E>;
  constexpr int kBlocks = kColumnTiles / 2;
  constexpr bool kAllHaveAll = kBlocks * kWarps * 16 == kColumns;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    typename Ops::A a[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) a[m] = weights(m, step);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if (!kAllHaveAll && (first_block + n) * 16 >= kColumns) break;
      typename Ops::B b = Ops::load_b_transposed(rows, first_k + step * Ops::kDepth, (first_block + n) * 16);
      if constexpr (kRows == Rows::finite_only) b = finite_part<E>(b);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        Ops::multiply(c[m][2 * n], a[m], b, 0);
        Ops::multiply(c[m][2 * n + 1], a[m], b, 1);
      }
    }
  }
}

}  // namespace cuflash
