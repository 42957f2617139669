// Loads of K, V, Q, dO and row statistics into shared memory, and the check for non-finite elements.
#pragma once

#include "portable/backward/visited_queries.h"
#include "tile/finite.h"

namespace cuflash {

// Keys outside the window of every query are loaded as zeros.
__device__ __forceinline__ Range seen_keys(const BackwardParams& p, const TaskCoord& coord) {
  return keys_of_any(p.attention, coord.sequence, {0, coord.sequence.len_q});
}
template <BackwardConfig C>
__device__ __forceinline__ void load_k(const BackwardParams& p, const TaskCoord& coord, SharedTiles<C> tiles) {
  const AttentionParams& a = p.attention;
  const Range seen = seen_keys(p, coord);
  load_tile<C.copy, num_threads(C)>(
      tiles.k(), a.k, row_address<C.element>(a.k, coord.b, coord.head_k, coord.sequence.k_begin), coord.k_first,
      static_cast<int>(seen.begin), static_cast<int>(seen.end), a.dim_qk, new_thread_id());
}
template <BackwardConfig C>
__device__ __forceinline__ void load_v(const BackwardParams& p, const TaskCoord& coord, SharedTiles<C> tiles) {
  const AttentionParams& a = p.attention;
  const Range seen = seen_keys(p, coord);
  load_tile<C.copy, num_threads(C)>(
      tiles.v(), a.v, row_address<C.element>(a.v, coord.b, coord.head_k, coord.sequence.k_begin), coord.k_first,
      static_cast<int>(seen.begin), static_cast<int>(seen.end), a.dim_v, new_thread_id());
}

// The pointer `heads` heads after `head`.
template <Element E>
__device__ __forceinline__ const void* heads_further(const RowsView& rows, const void* head, int heads) {
  const int size = rows.element == static_cast<int>(E) ? size_of(E) : size_of(Element::f32);
  return static_cast<const char*>(head) + heads * rows.head_stride * size;
}

// Source and destination of one query tile.
template <BackwardConfig C>
struct QueriesToLoad {
  const void *q, *dout;  // row 0 of the head
  const unsigned char* stats;
  int first, end;  // first query of the tile, end of the sequence
  int stage, thread;

  // Loads for head `member` of the task's group; does nothing if the head does not exist.
  __device__ __forceinline__ QueriesToLoad(const BackwardParams& p, const TaskCoord& coord, int member, int tile,
                                           int stage)
      : q(heads_further<C.element>(p.attention.q, coord.q, member)),
        dout(heads_further<C.element>(p.dout, coord.dout, member)),
        stats(reinterpret_cast<const unsigned char*>(row_stats<C>(p, coord.query_tile(member, tile)))),
        first(tile * C.tile_q),
        end(member < coord.group ? coord.sequence.len_q : 0),
        stage(stage),
        thread(new_thread_id()) {}

  __device__ __forceinline__ void load_q(const BackwardParams& p, SharedTiles<C> tiles, Slice slice = {}) const {
    load_tile<C.copy, num_threads(C)>(tiles.q(stage), p.attention.q, q, first, 0, end, p.attention.dim_qk, thread,
                                      slice);
  }
  __device__ __forceinline__ void load_dout(const BackwardParams& p, SharedTiles<C> tiles, Slice slice = {}) const {
    load_tile<C.copy, num_threads(C)>(tiles.dout(stage), p.dout, dout, first, 0, end, p.attention.dim_v, thread, slice);
  }
  __device__ __forceinline__ void load_stats(SharedTiles<C> tiles) const {
    constexpr int kChunks = row_stats_bytes(C) / 16, kThreads = num_threads(C);
#pragma unroll
    for (int n = 0; n < (kChunks + kThreads - 1) / kThreads; ++n)
      if (const int chunk = thread + n * kThreads; chunk < kChunks)
        cp_async_16(shared_address(tiles.stats(stage)) + chunk * 16, stats + chunk * 16, end > 0 ? 16 : 0);
  }
  // Slices in ascending order: statistics and Q first, then dO.
  __device__ __forceinline__ void load_slice(const BackwardParams& p, SharedTiles<C> tiles, Slice slice) const {
    const int half = slice.of / 2;
    if (slice.number == 0) load_stats(tiles);
    if (slice.number < half) load_q(p, tiles, {slice.number, half});
    else load_dout(p, tiles, {slice.number - half, half});
  }
};

// Sets the fields of the task that depend on its first query head h.
template <BackwardConfig C>
__device__ __forceinline__ void set_heads(const BackwardParams& p, TaskCoord& coord, int h) {
  coord.tiles_before = query_tile<C>(p, coord.sequence, coord.b, h, 0);
  coord.tiles_of_head = query_tile<C>(p, coord.sequence, coord.b, h + 1, 0) - coord.tiles_before;
  coord.q = row_address<C.element>(p.attention.q, coord.b, h, coord.sequence.q_begin);
  coord.dout = row_address<C.element>(p.dout, coord.b, h, coord.sequence.q_begin);
}

__device__ __forceinline__ void wait_for_copies() {
  cp_async_wait<0>();
  __syncthreads();
}

// Whether an element of the tile is not finite; uniform over the CTA.
template <int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ bool has_not_finite(Tile<E, kRows, kColumns> tile) {
  constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
  bool found = false;
  for (int n = static_cast<int>(threadIdx.x); n < kRows * kChunks; n += kThreads) {
    const auto* chunk = tile.at(n / kChunks, n % kChunks * kPerChunk);
    if constexpr (size_of(E) == 2) {
      found |= has_not_finite<E>(*reinterpret_cast<const uint4*>(chunk));
    } else {
#pragma unroll
      for (int x = 0; x < kPerChunk; ++x) found |= !(chunk[x] - chunk[x] == 0);
    }
  }
  return __syncthreads_or(found) != 0;
}

}  // namespace cuflash
