// Properties of a query tile that the consumers of the backward kernel need in addition to its row statistics, if the
// call has options. The producer writes them behind the statistics of the stage before it signals the stage.
#pragma once

#include "philox.h"
#include "tile/element.h"

namespace cuflash {

struct StepInfo {
  int head;            // query head
  int q_first;         // first query of the tile
  unsigned mask_tile;  // with a mask tensor: the listed tile (sm90/mask_tiles.h)
  // ALiBi: the position of query q_first minus the position of the task's first key, and the head's slope in units of
  // log2; with kAffineAlibi, the slope is negated if all keys come after the queries. dot_slope: the slope in units of
  // dot products. spans_diagonal: some visible keys come before a query and some after.
  float distance, slope, dot_slope;
  int spans_diagonal;
  DropoutStream stream;  // dropout stream of the tile's head
};

// Slope of ALiBi in units of log2.
__device__ __forceinline__ float slope_log2(const AttentionParams& a, int b, int h) {
  return static_cast<const float*>(a.slopes.data)[offset_of(a.slopes, b, h)] * static_cast<float>(kLog2e);
}
__device__ __forceinline__ DropoutStream stream_of(const AttentionParams& a, int b, int h) {
  return dropout_stream(a.dropout_seed, a.dropout_offset, static_cast<unsigned>(b), static_cast<unsigned>(h));
}

}  // namespace cuflash
