// Coordinates and key tile ranges of a consumer warpgroup's query tile. The producer computes them and passes them
// through shared memory together with Q, so that they occupy no registers of the consumer.
#pragma once

#include "attn/visited_tiles.h"

namespace cuflash {

// Special values of TileInfo::rows_end. 0 means that there is no tile in this round.
constexpr int kNoMoreTiles = -1;            // there is no tile in this round or in a later one
constexpr int kIdleWarpgroup = -(1 << 30);  // the warpgroup has no rows in the tile and only releases its stages

constexpr int kHalfTile = 1 << 30;

// Query of a row that is a pair of a query and a head of a group (kPackHeads). Such a group divides the rows of a
// warpgroup, so it is a power of two; divisions would be most of the code that a short call runs once.
__device__ __forceinline__ int query_of_packed_row(int row, int group) {
  return static_cast<int>(static_cast<unsigned>(row) >> (__ffs(static_cast<unsigned>(group)) - 1));
}

struct TileInfo {
  int b, h;
  int q_first;                // the warpgroup's first query
  int q_begin, len_q, len_k;  // first row and lengths of the sequence
  int shift;                  // shift of the sequence; fits into an int, as the lengths do
  int rows_end;               // rows below this are stored
  int begin, end;             // key tiles of the CTA
  // Key tiles of the warpgroup, as in VisitedTiles. With halves_first_tile, warpgroup_end may have kHalfTile added: the
  // warpgroup's queries see at most the first half of their last key tile.
  int warpgroup_begin, full_begin, full_end, warpgroup_end;

  __device__ Sequence sequence() const { return {q_begin, 0, len_q, len_k, shift}; }
};
// The TileInfo with kSplitKeys. It is a separate type, so that the size of the others stays a multiple of eight bytes.
struct SplitTileInfo : TileInfo {
  int split;  // which part of the keys
  int unused;
};
// The TileInfo with has_full_run.
struct MaskTileInfo : TileInfo {
  int run_begin, run_end;  // tiles in which nothing is hidden from the warpgroup
};
static_assert(sizeof(TileInfo) <= kTileInfoBytes && sizeof(SplitTileInfo) <= kTileInfoBytes &&
              sizeof(MaskTileInfo) <= kTileInfoBytes);

__device__ __forceinline__ const SplitTileInfo& split_info(const TileInfo& info) {
  return static_cast<const SplitTileInfo&>(info);
}

template <bool kHasRun>
__device__ __forceinline__ int run_begin_of(const TileInfo& info) {
  if constexpr (kHasRun) return static_cast<const MaskTileInfo&>(info).run_begin;
  else return 0;
}
template <bool kHasRun>
__device__ __forceinline__ int run_end_of(const TileInfo& info) {
  if constexpr (kHasRun) return static_cast<const MaskTileInfo&>(info).run_end;
  else return 0;
}

template <bool kSplit, bool kHasRun>
struct TileInfoFor {
  using Type = TileInfo;
};
template <>
struct TileInfoFor<true, false> {
  using Type = SplitTileInfo;
};
template <>
struct TileInfoFor<false, true> {
  using Type = MaskTileInfo;
};

}  // namespace cuflash
