// Epilogue of a consumer warpgroup whose CTA has a part of the keys: stores O, not normalised, and the softmax state of
// each row to the workspace (KeySplits), where combine_splits.h reads them.
#pragma once

#include "attn/softmax.h"
#include "ptx/global.h"
#include "sm90/lane_coord.h"
#include "sm90/tile_info.h"

namespace cuflash {

// Row of KeySplits that holds query i.
__device__ __forceinline__ int64 split_row(const AttentionParams& a, int b, int h, int64 q_begin, int i) {
  return a.cu_q ? h * a.total_q + q_begin + i : (int64{b} * a.heads_q + h) * a.len_q + i;
}

// Row of KeySplits for row i of a warpgroup's tile, in its split. kPacked: whether the config has kPackHeads.
template <bool kPacked>
__device__ __forceinline__ int64 split_row(const Sm90ForwardParams& p, const SplitTileInfo& info, int i) {
  const AttentionParams& a = p.forward.attention;
  const int query = kPacked ? query_of_packed_row(i, a.group) : i;
  const int head = kPacked ? info.h * a.group + (i - query * a.group) : info.h;
  return info.split * p.splits.rows + split_row(a, info.b, head, info.q_begin, query);
}

template <bool kPacked, class RowSoftmax>
__device__ __forceinline__ void store_split_states(const Sm90ForwardParams& p, const SplitTileInfo& info,
                                                   LaneCoord lane, const RowSoftmax& softmax) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = info.q_first + lane.row + 8 * r;
    if (lane.column != 0 || i >= info.rows_end) continue;
    const float state[2] = {softmax.row_max[r], softmax.row_sum[r]};
    store_to_global(p.splits.states + split_row<kPacked>(p, info, i) * 2, state);
  }
}

// softmax: after reduce_row_sum. A quad stores 32 adjacent bytes of a row at a time.
template <bool kPacked, class RowSoftmax, int kTiles>
__device__ __forceinline__ void store_split(const Sm90ForwardParams& p, const SplitTileInfo& info, LaneCoord lane,
                                            const RowSoftmax& softmax, const Accumulator<float> (&o)[kTiles]) {
  store_split_states<kPacked>(p, info, lane, softmax);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = info.q_first + lane.row + 8 * r;
    if (i >= info.rows_end) continue;
    float* to = p.splits.o + split_row<kPacked>(p, info, i) * p.splits.columns + lane.column;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float pair[2] = {o[n].x[2 * r], o[n].x[2 * r + 1]};
      store_to_global(to + n * 8, pair);
    }
  }
}

}  // namespace cuflash
