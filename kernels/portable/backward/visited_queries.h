// The query tiles that see a key tile, and the queries of a tile that see a lane's keys.
#pragma once

#include "attn/visited_tiles.h"
#include "portable/backward/exponentiate.h"
#include "portable/backward/shape.h"

namespace cuflash {

// Queries that see all of the keys.
__device__ __forceinline__ Range queries_of_all(const AttentionParams& a, const Sequence& s, Range keys) {
  if (keys.empty()) return {0, 0};
  return queries_that_see_all(a, s, keys);
}

// Masked tiles come first. A short last query tile needs no mask, since P of its missing rows is 0; a short key tile
// does.
template <BackwardConfig C>
__device__ __forceinline__ VisitedTiles visited_query_tiles(const AttentionParams& a, const Sequence& s, Range keys,
                                                            bool mask_all) {
  const Range any = queries_of_any(a, s, keys), all = queries_of_all(a, s, keys);
  if (any.empty()) return {0, 0, 0, 0, 0};
  VisitedTiles w;
  w.begin = static_cast<int>(any.begin / C.tile_q);
  w.end = static_cast<int>(tiles_in(any.end, C.tile_q));
  const int64 full_end = all.end >= s.len_q ? tiles_in(s.len_q, C.tile_q) : max(int64{0}, all.end) / C.tile_q;
  w.full_begin = static_cast<int>(clamped(tiles_in(all.begin, C.tile_q), w.begin, w.end));
  w.full_end = static_cast<int>(clamped(full_end, w.full_begin, w.end));
  if (mask_all) w.full_end = w.full_begin;
  w.num_masked = w.count() - (w.full_end - w.full_begin);
  return w;
}

// Visibility of a query tile for some keys of a key tile.
template <BackwardConfig C>
__device__ __forceinline__ TileMode tile_mode(const AttentionParams& a, const Sequence& s, Range keys, int tile) {
  const int64 begin = int64{tile} * C.tile_q, end = min(begin + C.tile_q, int64{s.len_q});
  const Range existing{keys.begin, min(keys.end, int64{s.len_k})};
  if (existing.empty()) return TileMode::hidden;
  const Range any = queries_of_any(a, s, existing), all = queries_of_all(a, s, keys);
  if (end <= any.begin || begin >= any.end) return TileMode::hidden;
  return existing.end == keys.end && begin >= all.begin && end <= all.end ? TileMode::full : TileMode::masked;
}

// Adds a key tile, for `heads` query heads, to the statistics. They count every existing pair, so `exact` excludes
// tiles that are masked for other reasons.
template <BackwardConfig C>
__device__ __forceinline__ void count_tiles(const AttentionParams& a, const Sequence& s, const VisitedTiles& exact,
                                            int heads) {
  const int64 visited = exact.count();
  atomicAdd(a.tile_counts + 0, static_cast<uint64>(heads * visited));
  atomicAdd(a.tile_counts + 1, static_cast<uint64>(heads * int64{exact.num_masked}));
  atomicAdd(a.tile_counts + 2, static_cast<uint64>(heads * (tiles_in(s.len_q, C.tile_q) - visited)));
}

// The range of queries of the tile that see each key of a lane.
template <BackwardConfig C>
struct VisibleQueries {
  int begin[Shape<C>::kKeyTiles][2], end[Shape<C>::kKeyTiles][2];  // [16 keys][lower, upper half]

  // lane_key: first key of the lane within the tile.
  __device__ __forceinline__ VisibleQueries(const AttentionParams& a, const Sequence& s, int q_first, int k_first,
                                            int lane_key = Shape<C>::first_key() + accumulator_row()) {
    const PositionMask<C.tile_q, C.tile_k> mask(a, s, q_first, k_first, 0, 0);
    const int rows = s.len_q - q_first;
#pragma unroll
    for (int m = 0; m < Shape<C>::kKeyTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int key = lane_key + 16 * m + 8 * half;
        begin[m][half] = key - mask.high + 1;
        end[m][half] = key < mask.length ? min(rows, key - mask.low + 1) : 0;
      }
  }
};

}  // namespace cuflash
