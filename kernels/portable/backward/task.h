// Task scheduling of backward: which key tile a CTA processes.
#pragma once

#include "portable/backward/loads.h"

namespace cuflash {

// Task of key tile `index`. The heads of a group are interleaved tile by tile, in key order.
template <BackwardConfig C>
__device__ __forceinline__ TaskCoord task_coord(const BackwardParams& p, int64 index) {
  const AttentionParams& a = p.attention;
  const int64 tiles = tiles_in(a.len_k, C.tile_k), heads = int64{a.heads_k} * a.batch;
  const int64 at_end = heads - p.heads_at_end;
  const int64 together = min(quotient(index, p.heads_together * tiles) * p.heads_together, at_end);
  const int64 members = together == at_end ? p.heads_at_end : p.heads_together;
  const int64 n = index - together * tiles, tile = quotient(n, members), head = together + n - tile * members;
  TaskCoord coord{};
  coord.b = static_cast<int>(quotient(head, a.heads_k)),
  coord.head_k = static_cast<int>(head - int64{coord.b} * a.heads_k);
  coord.k_first = static_cast<int>(tile) * C.tile_k;
  coord.sequence = sequence_of(a, coord.b);
  coord.written = max(0, min(C.tile_k, (a.cu_k ? coord.sequence.len_k : a.len_k) - coord.k_first));
  coord.group = a.group;
  set_heads<C>(p, coord, coord.head_k * coord.group);
  // Every tile needs a select if a score can be -inf or if there is a mask tensor, and so does a tile with missing
  // keys.
  constexpr bool kMaskAll = (C.options & (kBias | kMaskTensor)) != 0;
  const Range keys{coord.k_first, min(int64{coord.k_first} + C.tile_k, int64{coord.sequence.len_k})};
  coord.visited =
      visited_query_tiles<C>(a, coord.sequence, keys, kMaskAll || keys.end < int64{coord.k_first} + C.tile_k);
  if (a.tile_counts && !keys.empty())
    count_tiles<C>(a, coord.sequence, visited_query_tiles<C>(a, coord.sequence, keys, false), coord.group);
  return coord;
}

// The task of this CTA; written is 0 if there is none.
template <BackwardConfig C>
__device__ __forceinline__ TaskCoord cta_task(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const int64 index = C.ordered ? static_cast<int64>(atomicAdd(p.ticket, 1ull)) : cta_number();
  return index < tiles_in(a.len_k, C.tile_k) * a.heads_k * a.batch ? task_coord<C>(p, index) : TaskCoord{};
}

// The next key tile with rows to store, for persistent CTAs. written < 0: no more tiles.
template <BackwardConfig C>
__device__ __forceinline__ TaskCoord next_task(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const int64 count = tiles_in(a.len_k, C.tile_k) * a.heads_k * a.batch;
  TaskCoord coord;
  do {
    const int64 index = static_cast<int64>(atomicAdd(p.ticket, 1ull));
    if (index < count) coord = task_coord<C>(p, index);
    else coord = TaskCoord{}, coord.written = -1;
  } while (coord.written == 0);
  return coord;
}

}  // namespace cuflash
