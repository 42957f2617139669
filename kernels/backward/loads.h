// Tiles of keys and of queries on their way into shared memory, and a look at whether what came is finite.
#pragma once

#include "backward/walk.h"

namespace cuflash {

// The number of this thread, read anew: whatever is computed from it does not stay in registers across steps.
__device__ __forceinline__ int new_thread_id() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Keys that nobody may look at, by lengths and window, come as zeros.
__device__ __forceinline__ Range seen_keys(const BackwardParams& p, const Place& at) {
  return keys_of_any(p.attention, at.sequence, {0, at.sequence.len_q});
}
template <BackwardConfig C>
__device__ __forceinline__ void load_k(const BackwardParams& p, const Place& at, SharedTiles<C> tiles) {
  const AttentionParams& a = p.attention;
  const Range seen = seen_keys(p, at);
  load_tile<C.copy, num_threads(C)>(tiles.k(), a.k, row_address<C.element>(a.k, at.b, at.head_k, at.sequence.k_begin),
                                    at.first, static_cast<int>(seen.begin), static_cast<int>(seen.end), a.dim_qk,
                                    new_thread_id());
}
template <BackwardConfig C>
__device__ __forceinline__ void load_v(const BackwardParams& p, const Place& at, SharedTiles<C> tiles) {
  const AttentionParams& a = p.attention;
  const Range seen = seen_keys(p, at);
  load_tile<C.copy, num_threads(C)>(tiles.v(), a.v, row_address<C.element>(a.v, at.b, at.head_k, at.sequence.k_begin),
                                    at.first, static_cast<int>(seen.begin), static_cast<int>(seen.end), a.dim_v,
                                    new_thread_id());
}

template <BackwardConfig C>
__device__ __forceinline__ void load_q(const BackwardParams& p, const Sequence& s, int b, int h, int tile,
                                       SharedTiles<C> tiles, int stage) {
  const AttentionParams& a = p.attention;
  load_tile<C.copy, num_threads(C)>(tiles.q(stage), a.q, row_address<C.element>(a.q, b, h, s.q_begin), tile * C.tile_q,
                                    0, s.len_q, a.dim_qk, new_thread_id());
}
template <BackwardConfig C>
__device__ __forceinline__ void load_dout(const BackwardParams& p, const Sequence& s, int b, int h, int tile,
                                          SharedTiles<C> tiles, int stage) {
  load_tile<C.copy, num_threads(C)>(tiles.dout(stage), p.dout, row_address<C.element>(p.dout, b, h, s.q_begin),
                                    tile * C.tile_q, 0, s.len_q, p.attention.dim_v, new_thread_id());
}
template <BackwardConfig C>
__device__ __forceinline__ void load_stats(const BackwardParams& p, int64 query_tile, SharedTiles<C> tiles, int stage) {
  const auto* from = reinterpret_cast<const unsigned char*>(row_stats<C>(p, query_tile));
  for (int n = new_thread_id(); n < row_stats_bytes(C) / 16; n += num_threads(C))
    copy_async_16(shared_address(tiles.stats(stage)) + n * 16, from + n * 16, 16);
}

__device__ __forceinline__ void wait_for_copies() {
  copy_async_wait<0>();
  __syncthreads();
}

// Whether an element of the tile is not finite; the same answer for all threads.
template <int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ bool has_not_finite(Tile<E, kRows, kColumns> tile) {
  constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
  bool found = false;
  for (int n = static_cast<int>(threadIdx.x); n < kRows * kChunks; n += kThreads) {
    const auto* chunk = tile.at(n / kChunks, n % kChunks * kPerChunk);
    if constexpr (size_of(E) == 2) {
      constexpr unsigned kExponent = E == Element::bf16 ? 0x7f80u : 0x7c00u;
      const uint4 four = *reinterpret_cast<const uint4*>(chunk);
      const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int x = 0; x < 4; ++x)
        found |= (words[x] & kExponent) == kExponent || (words[x] >> 16 & kExponent) == kExponent;
    } else {
#pragma unroll
      for (int x = 0; x < kPerChunk; ++x) found |= !(chunk[x] - chunk[x] == 0);
    }
  }
  return __syncthreads_or(found) != 0;
}

}  // namespace cuflash
