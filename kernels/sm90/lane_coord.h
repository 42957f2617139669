// Rows and columns of a wgmma accumulator that a lane holds: warp w of a warpgroup has rows 16 w to 16 w + 15, as 16x8
// tiles side by side (tile/operand.h).
#pragma once

#include "attn/tile_scores.h"

namespace cuflash {

// Rows count from the first row of thread 0.
__device__ __forceinline__ LaneCoord lane_coord_of(int thread) {
  return {thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2};
}
// Rows count from the warpgroup's first row. The thread index is read with every call, so that nothing derived from it
// stays in registers.
__device__ __forceinline__ LaneCoord lane_coord_in_warpgroup() {
  const int thread = new_thread_id();
  return {thread / 32 % 4 * 16 + thread % 32 / 4, thread % 4 * 2};
}

}  // namespace cuflash
