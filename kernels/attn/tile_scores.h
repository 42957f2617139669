// Score options, masks and dropout, applied to the score accumulators of a lane: kRowTiles tiles of 16 rows by kTiles
// tiles of 8 columns (tile/operand.h).
#pragma once

#include "attn/score.h"
#include "attn/visited_tiles.h"
#include "tile/operand.h"

namespace cuflash {

// Column of a lane within the tile.
__device__ __forceinline__ int lane_column(int n, int e) { return n * 8 + lane_id() % 4 * 2 + e; }

// First row and column of a lane within the tile.
struct LaneCoord {
  int row, column;
};

// Applies the options and then the masks. Masks select, so a hidden score may hold any value. kApplyMask: lengths or
// window may hide a pair of this tile. kTileQ: number of rows from q_first on.
template <bool kApplyMask, int kTileQ, class Options, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void modify_and_mask(Accumulator<Real> (&s)[kRowTiles][kTiles], const AttentionParams& a,
                                                const Sequence& sequence, const Options& options, LaneCoord lane,
                                                int q_first, int k_first) {
  if constexpr (!kApplyMask && !Options::kModifiesScore && !Options::kHasMask) return;
  const PositionMask<kTileQ, kTiles * 8> mask(a, sequence, q_first, k_first, lane.row, lane.column);
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r) {
    const int i = q_first + lane.row + r / 2 * 16 + r % 2 * 8;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Real& x = s[r / 2][n].x[r % 2 * 2 + e];
        const int j = k_first + lane.column + n * 8 + e;
        const bool exists = i < sequence.len_q && j < sequence.len_k;
        bool visible = !kApplyMask || mask.sees(r / 2 * 16 + r % 2 * 8, n * 8 + e);
        x = options.score(x, i, j, exists);
        if constexpr (Options::kHasMask) visible = visible && options.unmasked(i, j, exists);
        x = visible ? x : minus_infinity<Real>();
      }
  }
}

template <class Options, class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void apply_dropout(Accumulator<Real> (&probs)[kRowTiles][kTiles], const Options& options,
                                              unsigned threshold, LaneCoord lane, int q_first, int k_first) {
  if constexpr (Options::kHasDropout) {
    if (!options.has_dropout()) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; n += 2)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const DropoutGroup group =
              options.dropout_group(q_first + lane.row, k_first + lane.column, m * 8, n / 2 * 8 + e);
#pragma unroll
          for (int w = 0; w < 4; ++w)
            if (!group.keeps(w / 2, w % 2, threshold)) probs[m][n + w % 2].x[w / 2 * 2 + e] = 0;
        }
  }
}

}  // namespace cuflash
