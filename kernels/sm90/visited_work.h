// A query tile and the key tiles that it visits, numbered in ascending order: all tiles that positions allow, or only
// those that a mask tensor also shows.
#pragma once

#include "sm90/mask_tiles.h"
#include "sm90/tile_scheduler.h"

namespace cuflash {

template <auto C, bool = reads_mask(C)>
struct VisitedWork : WorkTile<C> {
  __device__ __forceinline__ VisitedWork(const AttentionParams& a, const MaskLists&, const TileCoord& tile,
                                         unsigned splits = 1)
      : WorkTile<C>(a, tile, splits) {}

  // The tile with number n, begin <= n < end.
  __device__ int key_tile(int n) const { return n; }
  __device__ bool sanitizes(const AttentionParams& a, int n) const { return WorkTile<C>::has_hidden_values(a, n); }
};

template <auto C>
struct VisitedWork<C, true> : WorkTile<C> {
  const int* list;
  int count;                // number of listed tiles
  int rows = tile_q_of(C);  // rows of the tile, in whole warpgroups

  __device__ __forceinline__ VisitedWork(const AttentionParams& a, const MaskLists& lists, const TileCoord& tile,
                                         unsigned splits = 1)
      : WorkTile<C>(a, tile, splits) {
    if (!this->exists) return;
    list = mask_list(lists, this->b, this->h, static_cast<int>(tile.q_tile));
    if constexpr (aligns_tiles_to_mask(C)) {
      const MaskListRows listed{static_cast<unsigned>(list[kMaskListRows])};
      this->q_first = listed.first_row(), rows = listed.groups() * kWarpgroupRows;
      this->find_keys(a, tile_queries());
    }
    this->begin = 0, this->end = count = list[0];
    if constexpr (splits_keys(C)) this->keep_split(static_cast<int>(splits));
  }

  __device__ Range tile_queries() const { return this->queries(this->q_first, rows); }
  __device__ ListedMaskTile listed(int n) const {
    return {static_cast<unsigned>(list[kMaskListHeader + count - 1 - n])};
  }
  __device__ MaskKeyBlocks key_blocks(const MaskLists& lists, int n) const {
    return {static_cast<unsigned>(list[lists.blocks + count - 1 - n])};
  }
  __device__ int key_tile(int n) const { return listed(n).tile(); }
  __device__ bool sanitizes(const AttentionParams&, int n) const { return listed(n).hides_key(); }
};

// Called by the producer: writes the TileInfo of one of the consumer warpgroups that share the tile. With a mask
// tensor, full_begin and full_end are positions of key tiles, and the other bounds are numbers in the list.
template <auto C>
__device__ __forceinline__ void write_tile_info(TileInfo& info, const AttentionParams& a, const VisitedWork<C>& work,
                                                int group) {
  write_tile_info<C>(info, a, static_cast<const WorkTile<C>&>(work), group);
  if constexpr (reads_mask(C)) {
    if (!work.exists) return;
    if (aligns_tiles_to_mask(C) && group * kWarpgroupRows >= work.rows) {
      info.rows_end = kIdleWarpgroup, info.warpgroup_begin = info.warpgroup_end = 0;
      return;  // write_empty_rows reads no run
    }
    const auto kept = [&](int n) { return max(work.begin, min(n, work.end)); };
    info.warpgroup_begin = kept(work.list[1 + 2 * group]), info.warpgroup_end = kept(work.list[2 + 2 * group]);
    if constexpr (has_full_run(C)) {
      auto& with_run = static_cast<MaskTileInfo&>(info);
      const int* run = work.list + kMaskListRuns + 2 * group;
      with_run.run_begin = run[0], with_run.run_end = run[1];
    }
  }
}

}  // namespace cuflash
