// Coordinates and key tile ranges of a consumer warpgroup's query tile. The producer computes them and passes them
// through shared memory together with Q, so that they occupy no registers of the consumer.
#pragma once

#include "attn/visited_tiles.h"

namespace cuflash {

constexpr int kNoMoreTiles = -1;

struct TileInfo {
  int b, h;
  int q_first;                                   // the warpgroup's first query
  int q_begin, len_q, len_k;                     // of the sequence
  int shift;                                     // of the sequence; fits into an int, as the lengths do
  int rows_end;                                  // rows below this are stored; 0: no tile, kNoMoreTiles: none follows
  int begin, end;                                // key tiles of the CTA
  int own_begin, full_begin, full_end, own_end;  // key tiles of the warpgroup, as in VisitedTiles

  __device__ Sequence sequence() const { return {q_begin, 0, len_q, len_k, shift}; }
};
// With kSplitKeys. A type of its own, so that the layout of the others stays a multiple of eight bytes.
struct SplitTileInfo : TileInfo {
  int split;  // which part of the keys
  int unused;
};
static_assert(sizeof(TileInfo) <= kTileInfoBytes && sizeof(SplitTileInfo) <= kTileInfoBytes);

__device__ __forceinline__ const SplitTileInfo& split_info(const TileInfo& info) {
  return static_cast<const SplitTileInfo&>(info);
}

template <bool kSplit>
struct TileInfoFor {
  using Type = TileInfo;
};
template <>
struct TileInfoFor<true> {
  using Type = SplitTileInfo;
};

}  // namespace cuflash
