// Task scheduling of backward: which key tile a CTA processes.
#pragma once

#include "portable/backward/loads.h"

namespace cuflash {

// Sets the fields of the task that depend on its key tile, for its batch entry.
template <BackwardConfig C>
__device__ __forceinline__ void set_keys(const BackwardParams& p, TaskCoord& coord, int64 tile) {
  const AttentionParams& a = p.attention;
  coord.k_first = static_cast<int>(tile) * C.tile_k;
  coord.sequence = sequence_of(a, coord.b);
  coord.written = max(0, min(C.tile_k, (a.cu_k ? coord.sequence.len_k : a.len_k) - coord.k_first));
}
// Sets the query tiles that see these keys, and adds them to the statistics for this many heads. kBySummary: the mask
// is read from its summary, which says which tiles need a select and which are counted (MaskedQueries).
template <BackwardConfig C, bool kBySummary = false>
__device__ __forceinline__ void set_visited(const BackwardParams& p, TaskCoord& coord, int counted_heads) {
  const AttentionParams& a = p.attention;
  // Every tile needs a select if a score can be -inf or if there is a mask tensor, and so does a tile with missing
  // keys.
  constexpr bool kMaskAll = (C.options & (kBySummary ? int{kBias} : kBias | kMaskTensor)) != 0;
  const Range keys{coord.k_first, min(int64{coord.k_first} + C.tile_k, int64{coord.sequence.len_k})};
  coord.visited =
      visited_query_tiles<C>(a, coord.sequence, keys, kMaskAll || keys.end < int64{coord.k_first} + C.tile_k);
  if (a.tile_counts && !keys.empty() && !(kBySummary && (C.options & kMaskTensor) != 0))
    count_tiles<C>(a, coord.sequence, visited_query_tiles<C>(a, coord.sequence, keys, false), counted_heads);
}

// A head and one of its key tiles, in the order in which tasks start.
struct OrderedTile {
  int64 head, tile;
};
// The heads of a group are interleaved tile by tile, in key order.
__device__ __forceinline__ OrderedTile ordered_tile(const BackwardParams& p, int64 index, int64 heads, int64 tiles) {
  const int64 at_end = heads - p.tail_heads;
  const int64 together = min(quotient(index, p.interleaved_heads * tiles) * p.interleaved_heads, at_end);
  const int64 members = together == at_end ? p.tail_heads : p.interleaved_heads;
  const int64 n = index - together * tiles, tile = quotient(n, members);
  return {together + n - tile * members, tile};
}

// Task of key tile `index`.
template <BackwardConfig C>
__device__ __forceinline__ TaskCoord task_coord(const BackwardParams& p, int64 index) {
  const AttentionParams& a = p.attention;
  const auto [head, tile] = ordered_tile(p, index, int64{a.heads_k} * a.batch, tiles_in(a.len_k, C.tile_k));
  TaskCoord coord{};
  coord.b = static_cast<int>(quotient(head, a.heads_k)),
  coord.head_k = static_cast<int>(head - int64{coord.b} * a.heads_k);
  set_keys<C>(p, coord, tile);
  coord.group = a.group;
  set_heads<C>(p, coord, coord.head_k * coord.group);
  set_visited<C, true>(p, coord, coord.group);
  return coord;
}

// The task of this CTA; written is 0 if there is none.
template <BackwardConfig C>
__device__ __forceinline__ TaskCoord cta_task(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const int64 index = C.ordered ? static_cast<int64>(atomicAdd(p.ticket, 1ull)) : cta_number();
  return index < tiles_in(a.len_k, C.tile_k) * a.heads_k * a.batch ? task_coord<C>(p, index) : TaskCoord{};
}

}  // namespace cuflash
