// The query tiles of a key tile that the mask tensor does not hide, and the mask bits of a lane's pairs.
#pragma once

#include "attn/tile_mask.h"
#include "portable/backward/visited_queries.h"

namespace cuflash {

// A query tile of a head of the group, and the stage into which it is loaded. After the last one, the head does not
// exist and nothing is loaded.
struct QueryStep {
  int member, tile, stage;
};

__device__ __forceinline__ MaskOfHead head_mask(const AttentionParams& a, const TaskCoord& coord, int member) {
  return a.summary.blocks ? mask_of_head(a.summary, coord.b, coord.head_k * coord.group + member) : MaskOfHead{};
}

// Iterates over the visible query tiles of all heads of a group. Uniform over a warp.
template <BackwardConfig C>
struct MaskedQueries {
  using Traversal = MaskTraversal<C.tile_q, C.tile_k, MaskAxis::queries>;

  const AttentionParams& a;
  const TaskCoord& coord;
  int member = 0;
  Traversal traversal;
  bool is_full = false;  // every pair of the tile that next() returned is visible

  __device__ __forceinline__ MaskedQueries(const AttentionParams& a, const TaskCoord& coord)
      : a(a), coord(coord), traversal(coord.visited.begin, view(0)) {}

  __device__ __forceinline__ QueryStep next(const QueryStep& now) {
    auto tile = traversal.next(view(member));
    while (tile.number < 0 && ++member < coord.group) {
      traversal = Traversal(coord.visited.begin, view(member));
      tile = traversal.next(view(member));
    }
    const int stage = C.stages == 2 ? now.stage ^ 1 : 0;  // the stage after the last tile is filled with zeros
    if (tile.number < 0) return {coord.group, 0, stage};
    is_full = tile.is_full && tile.number >= coord.visited.full_begin && tile.number < coord.visited.full_end;
    return {member, tile.number, stage};
  }

  // Adds the tiles of all heads to the statistics, which count every existing pair. Called by the first warp.
  __device__ __forceinline__ void count() const {
    const Range keys{coord.k_first, min(int64{coord.k_first} + C.tile_k, int64{coord.sequence.len_k})};
    if (!a.tile_counts || keys.empty()) return;
    const VisitedTiles exact = visited_query_tiles<C>(a, coord.sequence, keys, false);
    for (int number = 0; number < coord.group; ++number) {
      Traversal tiles(coord.visited.begin, view(number));
      int visible = 0, masked = 0;
      for (auto tile = tiles.next(view(number)); tile.number >= 0; tile = tiles.next(view(number)))
        ++visible, masked += !(tile.is_full && tile.number >= exact.full_begin && tile.number < exact.full_end);
      if (lane_id() == 0) add_tile_counts(a, visible, masked, tiles_in(coord.sequence.len_q, C.tile_q) - visible);
    }
  }

 private:
  __device__ __forceinline__ auto view(int number) const {
    return [this, number] { return MaskView{head_mask(a, coord, number), coord.k_first, coord.visited.end}; };
  }
};

// The number of key tiles before this one that add to dQ of a query tile, for CTAs that add in key order. Called by one
// warp.
template <BackwardConfig C>
__device__ __forceinline__ int visible_tiles_before(const AttentionParams& a, const TaskCoord& coord,
                                                    const QueryStep& step) {
  const int64 first = int64{step.tile} * C.tile_q;
  const Range queries{first, min(first + C.tile_q, int64{coord.sequence.len_q})};
  const auto view = [&] {
    return MaskView{head_mask(a, coord, step.member), step.tile * C.tile_q, coord.k_first / C.tile_k};
  };
  return MaskTraversal<C.tile_q, C.tile_k, MaskAxis::keys>(
             static_cast<int>(keys_of_any(a, coord.sequence, queries).begin / C.tile_k), view)
      .count(view);
}

}  // namespace cuflash
