// Tiles whose rows are pairs of a query and a head of the group that shares keys (kPackHeads): row = query * group +
// head. The queries of a lane's two rows are computed when they are needed.
#pragma once

#include "attn/tile_scores.h"
#include "sm90/tile_info.h"
#include "sm90/tma_load.h"

namespace cuflash {

// A box of the tensor map has all heads of a group, and as many queries as fill its rows: see packed_query_map.
template <int kColumns>
__device__ __forceinline__ void tma_load_packed_rows(SwizzledTile<kWarpgroupRows, kColumns> tile, const TensorMap& map,
                                                     const AttentionParams& a, unsigned barrier, const TileInfo& info) {
  mbarrier_arrive_expect_tx(barrier, tile.kBytes);
  const int first = info.q_begin + query_of_packed_row(info.q_first, a.group), head = info.h * a.group;
  const int batch = a.q.batch_stride != 0 ? info.b : 0;
#pragma unroll
  for (int panel = 0; panel < tile.kPanels; ++panel)
    tma_load(tile.address + panel * tile.kPanelBytes, map, barrier, panel * kPanelColumns, head, first, batch);
}

// Applies the positional mask, as modify_and_mask does for a tile of one head.
template <int kTiles>
__device__ __forceinline__ void mask_packed_rows(Accumulator<float> (&s)[1][kTiles], const AttentionParams& a,
                                                 const Sequence& sequence, LaneCoord lane, int row_first, int k_first) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const Range keys = keys_of_query(a, sequence, query_of_packed_row(row_first + lane.row + 8 * r, a.group));
    const int low = static_cast<int>(clamped(keys.begin - k_first, 0, kTiles * 8)) - lane.column,
              high = static_cast<int>(clamped(keys.end - k_first, 0, kTiles * 8)) - lane.column;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (n * 8 + e < low || n * 8 + e >= high) s[0][n].x[r * 2 + e] = minus_infinity<float>();
  }
}

}  // namespace cuflash
