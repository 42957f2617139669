// Which rows and columns of a wgmma accumulator a lane holds: warp w of a warpgroup has rows 16 w to 16 w + 15, as 16x8
// tiles side by side (tile/operand.h).
#pragma once

#include "attn/tile_scores.h"

namespace cuflash {

// Rows are counted from the first row of thread 0. The thread index is read again with every call, so that nothing derived
// from it stays in registers.
__device__ __forceinline__ LaneCoord lane_coord_in_cta() {
  const int thread = new_thread_id();
  return {thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2};
}
// Rows are counted from the warpgroup's first row.
__device__ __forceinline__ LaneCoord lane_coord_in_warpgroup() {
  const int thread = new_thread_id();
  return {thread / 32 % 4 * 16 + thread % 32 / 4, thread % 4 * 2};
}

}  // namespace cuflash
