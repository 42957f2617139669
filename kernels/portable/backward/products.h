// The five products of backward, as one warp computes its share.
#pragma once

#include "portable/backward/shape.h"
#include "tile/finite.h"

namespace cuflash {

// 0 * NaN is NaN, so a P or dS of 0 hides a row only if the row is finite. In masked tiles with non-finite values, such
// elements of K and Q are left out of the products with dS, because a pair that does see them has a NaN in its dS
// anyway. P carries no such NaN for dO, so dV is then accumulated with a select instead of tensor cores.
enum class Rows { any, finite_only };

template <Element E>
__device__ __forceinline__ typename Operands<E>::B finite_part(typename Operands<E>::B b) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int tile = n / 2, k = n % 2;
    if constexpr (size_of(E) == 2) {
      b.r[tile][k] = finite_pair<E>(b.r[tile][k]);
    } else if constexpr (E == Element::f32) {
      const bool finite = (b.high[tile][k] & 0x7f800000u) != 0x7f800000u;
      b.high[tile][k] = finite ? b.high[tile][k] : 0u, b.low[tile][k] = finite ? b.low[tile][k] : 0u;
    } else {
      b.r[tile][k] = b.r[tile][k] - b.r[tile][k] == 0.0 ? b.r[tile][k] : 0.0;
    }
  }
  return b;
}

struct NoOp {
  __device__ __forceinline__ void operator()(Slice) const {}
};

// c [key][query] += kCount columns of rows of x times those of rows of y. The result has the same bits as forward's
// scores, from which LSE is made: for large scores, only equal bits make their difference exact. `between` is called
// after every step.
template <BackwardConfig C, int kCount, Element E, int kKeys, int kQueries, int kColumns, class Between = NoOp>
__device__ __forceinline__ void multiply_columns(
    typename Shape<C>::Sum (&c)[Shape<C>::kKeyTiles][Shape<C>::kQueryTiles], Tile<E, kKeys, kColumns> x, int first_key,
    Tile<E, kQueries, kColumns> y, int first_query, int first_column, Between between = {}) {
  using S = Shape<C>;
  using Ops = typename S::Ops;
#pragma unroll
  for (int k = 0; k < kCount; k += Ops::kDepth) {
    typename Ops::A a[S::kKeyTiles];
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m) a[m] = Ops::load_a(x, first_key + 16 * m, first_column + k);
#pragma unroll
    for (int n = 0; n < S::kQueryTiles; n += 2) {
      const typename Ops::B b = Ops::load_b(y, first_query + 8 * n, first_column + k);
#pragma unroll
      for (int m = 0; m < S::kKeyTiles; ++m) {
        Ops::multiply_mirrored(c[m][n], a[m], b, 0);
        Ops::multiply_mirrored(c[m][n + 1], a[m], b, 1);
      }
    }
    between(Slice{k / Ops::kDepth, kCount / Ops::kDepth});
  }
}

// S^T = K Q^T, dP^T = V dO^T.
template <BackwardConfig C, Element E, int kKeys, int kQueries, int kColumns, class Between = NoOp>
__device__ __forceinline__ void multiply_rows(typename Shape<C>::Sum (&c)[Shape<C>::kKeyTiles][Shape<C>::kQueryTiles],
                                              Tile<E, kKeys, kColumns> x, int first_key, Tile<E, kQueries, kColumns> y,
                                              int first_query, Between between = {}) {
  using S = Shape<C>;
  constexpr int kAtOnce = sums_drift(E) ? kShortSum : kColumns;
  multiply_columns<C, kAtOnce>(c, x, first_key, y, first_query, 0, between);
#pragma unroll 1  // or the compiler would compute several parts at once
  for (int k = kAtOnce; k < kColumns; k += kAtOnce) {
    typename S::Sum part[S::kKeyTiles][S::kQueryTiles] = {};
    multiply_columns<C, kAtOnce>(part, x, first_key, y, first_query, k);
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kQueryTiles; ++n) c[m][n] += part[m][n];
  }
}

// c [row][column] += sum over k of operand [row][k] * rows [k][column]: dV += P^T dO, dK += dS^T Q, dQ = dS K.
// operand(m, step) returns the A operand of 16 rows and kDepth of k. Blocks of 16 columns are distributed over kWarps
// warps; this warp has those from first_block on.
template <int kSteps, int kWarps, Rows kRows, Element E, int kTiles, int kColumnTiles, int kAllRows, int kColumns,
          class OperandOf>
__device__ __forceinline__ void accumulate_product(Accumulator<RealOf<E>> (&c)[kTiles][kColumnTiles],
                                                   Tile<E, kAllRows, kColumns> rows, int first_k, int first_block,
                                                   OperandOf operand) {
  using Ops = Operands<E>;
  constexpr int kBlocks = kColumnTiles / 2;
  constexpr bool kEvenColumns = kBlocks * kWarps * 16 == kColumns;
  // Steps that the tensor cores sum before the partial sum is added to c. A single step needs no partial sum.
  constexpr int kShortSteps = kShortSum / Ops::kDepth;
  constexpr int kAtOnce = !sums_drift(E) ? 1 : kSteps < kShortSteps ? kSteps : kShortSteps;
  static_assert(kSteps % kAtOnce == 0);
#pragma unroll
  for (int first = 0; first < kSteps; first += kAtOnce) {
    typename Ops::A a[kAtOnce][kTiles];
#pragma unroll
    for (int step = 0; step < kAtOnce; ++step)
#pragma unroll
      for (int m = 0; m < kTiles; ++m) a[step][m] = operand(m, first + step);
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if (!kEvenColumns && (first_block + n) * 16 >= kColumns) break;
      Accumulator<RealOf<E>> part[kTiles][2] = {};
#pragma unroll
      for (int step = 0; step < kAtOnce; ++step) {
        typename Ops::B b =
            Ops::load_b_transposed(rows, first_k + (first + step) * Ops::kDepth, (first_block + n) * 16);
        if constexpr (kRows == Rows::finite_only) b = finite_part<E>(b);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int t = 0; t < 2; ++t) Ops::multiply(sums_drift(E) ? part[m][t] : c[m][2 * n + t], a[step][m], b, t);
      }
      if constexpr (sums_drift(E)) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int t = 0; t < 2; ++t) c[m][2 * n + t] += part[m][t];
      }
    }
  }
}

}  // namespace cuflash
