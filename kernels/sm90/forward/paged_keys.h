// Loads of K and V from a KV cache whose rows are in pages, or in entries that a batch index names (kPagedKeys). A key
// tile is several TMA boxes, none of which crosses the end of a page. Lane n of the producer warp looks up the page of
// box n, one tile ahead, so that the lookup overlaps with the wait for a free stage. One lane then issues all boxes.
#pragma once

#include "kv/geometry.h"
#include "sm90/forward/forward_tiles.h"
#include "sm90/tma_load.h"

namespace cuflash {

// Row of the cache at which box n of a key tile begins, and the column of the table that has its page. A box beyond the
// last row of the table begins with that row, and TMA fills its other rows with zeros.
struct PagedRow {
  int row, column;
};
template <Sm90ForwardConfig C>
__device__ __forceinline__ PagedRow paged_row(const PageTable& t, int tile, int n) {
  const int row = bounded(tile * C.tile_k + n * t.box_rows, 0, t.last_row);
  return {row, static_cast<int>(divided(static_cast<unsigned>(row), t.by_page_size))};
}

// The page of the lane's box. The table entry of keys that no query sees may name no page: they are read from any page,
// since their scores are masked and their values zeroed (ValueSanitizer).
template <Sm90ForwardConfig C>
__device__ __forceinline__ int page_of_lane(const PageTable& t, int b, int tile) {
  const int column = paged_row<C>(t, tile, min(lane_id(), t.boxes - 1)).column;
  return bounded(t.pages[b * t.stride + column], 0, t.last_page);
}

// Called by the whole warp. pages: page_of_lane. load(to, column, row, page) issues a box. Rows are computed again
// because the producer has few registers.
template <Sm90ForwardConfig C, class Tile, class Load>
__device__ __forceinline__ void load_paged_tile(Tile to, const PageTable& t, unsigned barrier, int tile, int pages,
                                                Load&& load) {
  if (lane_id() == 0) mbarrier_arrive_expect_tx(barrier, to.kBytes);
#pragma unroll 1
  for (int n = 0; n < t.boxes; ++n) {
    const int page = __shfl_sync(0xffffffffu, pages, n);
    if (lane_id() != 0) continue;
    const PagedRow from = paged_row<C>(t, tile, n);
    const unsigned address = to.address + static_cast<unsigned>(n * t.box_rows * kPanelRowBytes);
#pragma unroll
    for (int panel = 0; panel < to.kPanels; ++panel)
      load(address + panel * to.kPanelBytes, panel * kPanelColumns, from.row - from.column * t.page_size, page);
  }
}

}  // namespace cuflash
