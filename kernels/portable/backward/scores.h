// P and dS of a chunk of queries against a warp's keys. Keys are rows, so that both are A operands, in registers, of
// the products that reduce over queries.
#pragma once

#include "attn/tile_mask.h"
#include "portable/backward/exponentiate.h"
#include "portable/backward/products.h"
#include "portable/backward/visited_queries.h"

namespace cuflash {

// of_bias: dS as the gradient of the bias, before the derivative of softcap. of_product: dS as the gradient of Q K^T,
// after it.
enum class Gradient { of_bias, of_product };

// The accumulators of one chunk.
template <BackwardConfig C>
struct ScoreChunk {
  using S = Shape<C>;
  using Real = typename S::Real;
  using Options = MaskedOptions<C.element, C.options>;

  typename S::Sum p[S::kKeyTiles][S::kQueryTiles];      // S^T, then P, then P after dropout
  typename S::Sum ds[S::kKeyTiles][S::kQueryTiles];     // dP^T, then dS^T
  typename S::Sum slope[S::kKeyTiles][S::kQueryTiles];  // derivative of softcap

  // first_query: first query of the chunk, within the tile. i, j: first query of the tile, first key of the warp.
  template <TileMode kMode, class Between = NoOp>
  __device__ __forceinline__ void compute_p(typename S::KTile k, typename S::QTile q, const Real* stats,
                                            int first_query, const Options& options, const VisibleQueries<C>& visible,
                                            int i, int j, Between between = {}) {
    clear(p);
    multiply_rows<C>(p, k, S::first_key(), q, first_query, between);
#pragma unroll
    for (int n = 0; n < S::kQueryTiles; ++n) {
      const int query = first_query + 8 * n + accumulator_column();
#pragma unroll
      for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const int my_query = query + x % 2, my_i = i + my_query, my_j = j + 16 * m + x / 2 * 8 + accumulator_row();
          bool seen = true;
          if constexpr (kMode != TileMode::full)
            seen = my_query >= visible.begin[m][x / 2] && my_query < visible.end[m][x / 2];
          Real tanh_value = 0;
          const Real score = options.score_of(p[m][n].x[x], my_i, my_j, seen, &tanh_value);
          if constexpr (kMode != TileMode::full && Options::kReadsMask)
            seen = seen && shows(options.mask, my_i, j + 16 * m, x / 2 * 8 + accumulator_row());
          p[m][n].x[x] = kMode == TileMode::full || seen ? score : minus_infinity<Real>();
          if constexpr ((C.options & kSoftcap) != 0)
            slope[m][n].x[x] = seen ? Real(1) - tanh_value * tanh_value : Real(0);
        }
    }
    const int lane_query = first_query + accumulator_column();
    if (C.all_gradients || has_large_rows<C>(stats))
      exponentiate_any_size<C, kMode>(p, stats, lane_query, options.natural_scale(), options.scale_log2());
    else exponentiate_small<C, kMode>(p, stats, lane_query, options.scale_log2());
  }

  template <TileMode kMode, Gradient kGradient>
  __device__ __forceinline__ void compute_ds(typename S::VTile v, typename S::DoutTile dout, const Real* stats,
                                             int first_query, const Options& options, int i, int j) {
    // Without dropout the accumulators start at -delta, so that the product yields dP - delta.
    constexpr bool kStartAtDelta = !Options::kHasDropout;
    Pair<Real> delta[S::kQueryTiles];
#pragma unroll
    for (int n = 0; n < S::kQueryTiles; ++n)
      delta[n] = pair_at(stats + delta_at(C, first_query + 8 * n + accumulator_column()));
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kQueryTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) ds[m][n].x[x] = kStartAtDelta ? -delta[n].x[x % 2] : Real(0);
    multiply_rows<C>(ds, v, S::first_key(), dout, first_query);
    if constexpr (!kStartAtDelta) drop(options, delta, i + first_query, j);
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kQueryTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          // With dropout, drop() has already multiplied dS by P, and P after dropout does not tell which pairs are
          // visible.
          Real gradient = kStartAtDelta ? p[m][n].x[x] * ds[m][n].x[x] : ds[m][n].x[x];
          if constexpr ((C.options & kSoftcap) != 0 && kGradient == Gradient::of_product) gradient *= slope[m][n].x[x];
          // A probability of exactly 0, hidden or underflowed, yields 0 whatever dP is.
          if constexpr (kMode != TileMode::full && kStartAtDelta)
            gradient = p[m][n].x[x] == Real(0) ? Real(0) : gradient;
          ds[m][n].x[x] = gradient;
        }
  }

  static __device__ __forceinline__ void clear(typename S::Sum (&c)[S::kKeyTiles][S::kQueryTiles]) {
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kQueryTiles; ++n) c[m][n] = {};
  }

 private:
  // Whether query i sees key j + offset, offset < 16. All keys of a lane are in this word.
  static __device__ __forceinline__ bool shows(const MaskOfHead& mask, int i, int j, int offset) {
    return !mask.blocks || (mask_row(mask, i)[j / 32] >> (j % 32 + offset) & 1) != 0;
  }

  // ds = p * (dropout(dP) - delta); p = dropout(p). A lane holds half of each dropout group: one of keys j and j + 1,
  // and one of j + 8 and j + 9.
  __device__ __forceinline__ void drop(const Options& options, const Pair<Real> (&delta)[S::kQueryTiles], int i,
                                       int j) {
    const Real kept = options.keep_scale();
    const int key = j + accumulator_row();
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kQueryTiles; n += 2)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          DropoutGroup group{};
          if (options.has_dropout()) group = options.dropout_group(i + accumulator_column(), key, n / 2 * 8 + x, m * 4);
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            Real& prob = p[m][n + w / 2].x[w % 2 * 2 + x];
            Real& gradient = ds[m][n + w / 2].x[w % 2 * 2 + x];
            const bool keeps = options.keeps(group, w / 2, w % 2 * 2 + static_cast<unsigned>(key) % 2);
            const Real through = keeps ? gradient * kept : Real(0);
            gradient = prob == Real(0) ? Real(0) : prob * (through - delta[n + w / 2].x[x]);
            prob = keeps ? prob * kept : Real(0);
          }
        }
  }
};

}  // namespace cuflash
