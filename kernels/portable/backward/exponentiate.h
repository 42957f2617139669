// P from scores: exp(S - LSE), with the LSE that forward computed.
#pragma once

#include "portable/backward/workspace.h"

namespace cuflash {

// full: every pair is visible. masked: some are hidden. hidden: all are hidden. guarded: masked with a non-finite row,
// or a row with a large LSE.
enum class TileMode { full, masked, hidden, guarded };

// Values of two neighbouring queries, loaded together.
template <class Real>
struct alignas(2 * sizeof(Real)) Pair {
  Real x[2];
};
template <class Real>
__device__ __forceinline__ Pair<Real> pair_at(const Real* first) {
  return *reinterpret_cast<const Pair<Real>*>(first);
}

// first_query: query of this lane's first column, within the tile.
template <TileMode kMode, class Real, int kKeyTiles, int kQueryTiles, class Exponent>
__device__ __forceinline__ void exponentiate_with(Accumulator<Real> (&p)[kKeyTiles][kQueryTiles],
                                                  const Real* lse_of_tile, int first_query, Exponent exponent) {
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const int query = first_query + 8 * n;
    const Pair<Real> lse = pair_at(lse_of_tile + query);
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        Real& score = p[m][n].x[x];
        const Real prob = exp2_of(exponent(score, lse.x[x % 2], query + x % 2));
        score = kMode != TileMode::full && score == minus_infinity<Real>() ? Real(0) : prob;
      }
  }
}

// Keys are rows. Scores times `factor` are exponents of 2.
template <BackwardConfig C, TileMode kMode, class Real, int kKeyTiles, int kQueryTiles>
__device__ __forceinline__ void exponentiate_small(Accumulator<Real> (&p)[kKeyTiles][kQueryTiles], const Real* stats,
                                                   int first_query, Real factor) {
  exponentiate_with<kMode>(p, stats + lse_at(C, 0), first_query,
                           [=](Real score, Real lse, int) { return score * factor - lse; });
}
// exponentiate_small for tiles in which an LSE may be large. In such rows the difference is taken before the
// multiplication by log2(e): it is 0 for equal values if the product is rounded as it was for the LSE. Scores times
// `unit` are in the units of the LSE.
template <BackwardConfig C, TileMode kMode, class Real, int kKeyTiles, int kQueryTiles>
__device__ __forceinline__ void exponentiate_any_size(Accumulator<Real> (&p)[kKeyTiles][kQueryTiles], const Real* stats,
                                                      int first_query, Real unit, Real factor) {
  const Real to_power = static_cast<Real>(kLog2e);
  const auto* large_rows = reinterpret_cast<const unsigned*>(stats + large_rows_at(C));
  exponentiate_with<kMode>(p, stats + lse_at(C, 0), first_query, [=](Real score, Real lse, int query) {
    const bool large = (large_rows[query / 32] >> query % 32 & 1) != 0;
    // In both variants the bits of a row do not depend on whether another row is large.
    if constexpr (C.all_gradients)
      return (rounded_product(score, large ? unit : factor) - lse) * (large ? to_power : Real(1));
    else return large ? (rounded_product(score, unit) - lse) * to_power : score * factor - lse;
  });
}
template <BackwardConfig C>
__device__ __forceinline__ bool has_large_rows(const RealOf<C.element>* stats) {
  return stats[large_at(C)] != 0;
}

}  // namespace cuflash
