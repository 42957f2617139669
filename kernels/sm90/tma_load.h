// TMA loads (cp.async.bulk.tensor) of swizzled tiles, one 64-column panel at a time.
#pragma once

#include "ptx/barrier.h"
#include "ptx/tma.h"
#include "sm90/mask_bits.h"
#include "tile/swizzled.h"

namespace cuflash {

// Loads a tile panel by panel. The bytes complete on a barrier that already expects them. A broadcast dimension (stride
// 0) has extent 1 in the tensor map.
template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_panels(SwizzledTile<kRows, kColumns> tile, const TensorMap& map,
                                                const RowsView& view, unsigned barrier, int row, int head, int batch,
                                                int column = 0) {
#pragma unroll
  for (int panel = 0; panel < tile.kPanels; ++panel)
    tma_load(tile.address + panel * tile.kPanelBytes, map, barrier, column + panel * kPanelColumns, row,
             view.head_stride != 0 ? head : 0, view.batch_stride != 0 ? batch : 0);
}

// Loads a tile as the barrier's only transaction of the phase: also arrives and expects its bytes.
template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_tile(SwizzledTile<kRows, kColumns> tile, const TensorMap& map,
                                              const RowsView& view, unsigned barrier, int row, int head, int batch) {
  mbarrier_arrive_expect_tx(barrier, tile.kBytes);
  tma_load_panels(tile, map, view, barrier, row, head, batch);
}

template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_tile(SwizzledTile<kRows, kColumns> tile, const TensorMap& map,
                                              const RowsView& view, unsigned barrier, int row, int head, int batch,
                                              EvictionPolicy policy) {
  mbarrier_arrive_expect_tx(barrier, tile.kBytes);
#pragma unroll
  for (int panel = 0; panel < tile.kPanels; ++panel)
    tma_load(tile.address + panel * tile.kPanelBytes, map, barrier, panel * kPanelColumns, row,
             view.head_stride != 0 ? head : 0, view.batch_stride != 0 ? batch : 0, policy);
}

// Load the bias, or bits of a mask tensor, whose columns are the keys from `key` on. A tensor that is broadcast over
// the queries has one row in its box.
template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_bias(SwizzledTile<kRows, kColumns> tile, const TensorMap& map,
                                              const RowsView& view, unsigned barrier, int key, int row, int head,
                                              int batch) {
  tma_load_panels(tile, map, view, barrier, view.row_stride != 0 ? row : 0, head, batch, key);
}
__device__ __forceinline__ void tma_load_mask(unsigned to, const TensorMap& map, const MaskSummary& mask,
                                              unsigned barrier, int key, int row, int head, int batch) {
  tma_load(to, map, barrier, mask_box_byte(key), mask.rows > 1 ? row : 0,
           batch * mask.batch_step + head * mask.head_step, 0);
}
// The bytes that TMA loads of a bias tile of `bytes` bytes: those of 64 queries, or of one query if all share it.
__device__ __forceinline__ unsigned box_bytes(const RowsView& view, int bytes) {
  return static_cast<unsigned>(view.row_stride != 0 ? bytes : bytes / kWarpgroupRows);
}

// Loads the row statistics of a query tile. They are contiguous but loaded through a tensor map: racecheck treats a
// plain cp.async.bulk as a write by the issuing thread and ignores the mbarrier that orders it (docs/lab/ci.md).
__device__ __forceinline__ void tma_load_row_stats(unsigned to, const TensorMap& map, unsigned barrier, int64 tile) {
  tma_load(to, map, barrier, 0, static_cast<int>(tile), 0, 0);
}

}  // namespace cuflash
