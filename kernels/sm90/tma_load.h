// A tile of rows on its way to shared memory, panel by panel.
#pragma once

#include "ptx/barrier.h"
#include "ptx/tma.h"
#include "tile/swizzled.h"

namespace cuflash {

// Its bytes arrive on a barrier that expects them. A repeated dimension has one coordinate.
template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_panels(SwizzledTile<kRows, kColumns> tile, const TensorMap& map,
                                                const RowsView& view, unsigned barrier, int row, int head, int batch) {
#pragma unroll
  for (int panel = 0; panel < tile.kPanels; ++panel)
    tma_load(tile.address + panel * tile.kPanelBytes, map, barrier, panel * kPanelColumns, row,
             view.head_stride != 0 ? head : 0, view.batch_stride != 0 ? batch : 0);
}

// All that arrives on the barrier.
template <int kRows, int kColumns>
__device__ __forceinline__ void tma_load_tile(SwizzledTile<kRows, kColumns> tile, const TensorMap& map,
                                              const RowsView& view, unsigned barrier, int row, int head, int batch) {
  mbarrier_arrive_expect_tx(barrier, tile.kBytes);
  tma_load_panels(tile, map, view, barrier, row, head, batch);
}

// Statistics of a tile of queries. By a tensor copy, though the bytes lie side by side: racecheck takes a plain bulk copy
// for a write of the thread that starts it, and does not know that barriers of copies order it (docs/log.md).
__device__ __forceinline__ void tma_load_row_stats(unsigned to, const TensorMap& map, unsigned barrier, int64 tile) {
  tma_load(to, map, barrier, 0, static_cast<int>(tile), 0, 0);
}

}  // namespace cuflash
