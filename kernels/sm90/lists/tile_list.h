// A separate kernel, launched before a forward kernel with kTileList: one CTA lists the query tiles of all sequences,
// those that see the most keys first. Only the device knows lengths and mask tensors, so the host cannot do it. It is a
// counting sort: tiles are counted by the number of key tiles that they see, and then written from the position where
// their count begins. Tiles with equal counts have no particular order, which changes which CTA computes them and when,
// but no result.
#pragma once

#include "attn/sequence.h"
#include "ptx/grid.h"
#include "sm90/mask_tiles.h"

namespace cuflash {

template <Sm90ForwardConfig C>
struct TileLister {
  static constexpr int kThreads = kTileListThreads;
  // Sequences are processed in chunks of one per thread. end: the end of a sequence's tiles within its chunk.
  struct Shared {
    unsigned end[kThreads];
    int len_q[kThreads], len_k[kThreads];
    unsigned bucket[kThreads];  // first the number of its tiles, then the position of the next one
    unsigned warp_total[kThreads / 32];
  };

  const Sm90ForwardParams& p;
  const AttentionParams& a;
  Shared& shared;
  int thread;

  // Inclusive prefix sum over the threads of the CTA.
  __device__ __forceinline__ unsigned prefix_sum(unsigned x) const {
    const int lane = thread % 32, warp = thread / 32;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const unsigned before = __shfl_up_sync(0xffffffffu, x, d);
      x += lane >= d ? before : 0;
    }
    if (lane == 31) shared.warp_total[warp] = x;
    __syncthreads();
    unsigned before = lane < warp ? shared.warp_total[lane] : 0;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) before += __shfl_xor_sync(0xffffffffu, before, d);
    __syncthreads();
    return x + before;
  }
  // Packed tensors have no rows beyond a sequence; padded ones do, and these must be written, too. With a mask tensor
  // there are lists for the largest number of tiles that it may require.
  __device__ unsigned tiles_of(const Sequence& s) const {
    if constexpr (reads_mask(C)) return static_cast<unsigned>(p.mask_lists.tiles);
    return static_cast<unsigned>(tiles_in(a.cu_q ? s.len_q : a.len_q, tile_q_of(C)));
  }
  __device__ __forceinline__ unsigned load_chunk(int first) const {
    const int b = first + thread;
    Sequence s{};
    if (b < a.batch) s = sequence_of(a, b);
    shared.len_q[thread] = s.len_q, shared.len_k[thread] = s.len_k;
    shared.end[thread] = prefix_sum(b < a.batch ? tiles_of(s) : 0);
    __syncthreads();
    return shared.end[kThreads - 1];
  }
  // The sequence of the chunk that tile n belongs to.
  __device__ int sequence_of_tile(unsigned n) const {
    int low = 0, high = kThreads - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (shared.end[middle] > n) high = middle;
      else low = middle + 1;
    }
    return low;
  }
  // How many key tiles a query tile sees; negative if there is no such tile. If heads have separate masks, the first
  // head's mask stands for all.
  __device__ __forceinline__ int64 key_tiles_of(int first_sequence, int sequence, int q_tile) const {
    if constexpr (reads_mask(C)) return mask_list(p.mask_lists, first_sequence + sequence, 0, q_tile)[0];
    const int len_q = shared.len_q[sequence], len_k = shared.len_k[sequence];
    const Sequence s{0, 0, len_q, len_k, a.top_left ? 0 : int64{len_k} - len_q};
    const int64 first = int64{q_tile} * tile_q_of(C);
    const Range seen = keys_of_any(a, s, {first, min(first + tile_q_of(C), int64{len_q})});
    return seen.empty() ? 0 : tiles_in(seen.end, C.tile_k) - seen.begin / C.tile_k;
  }
  // Bucket 0 has the tiles that see the most keys.
  __device__ __forceinline__ int bucket_of(int64 key_tiles) const {
    return kThreads - 1 -
           static_cast<int>(min(quotient(key_tiles * kThreads, p.list.max_key_tiles + 1), int64{kThreads - 1}));
  }
  // kAgain: a second pass over the same tiles, whose only chunk is still in shared memory.
  template <bool kAgain, class OnTile>
  __device__ __forceinline__ void for_each_tile(OnTile&& on_tile) const {
#pragma unroll 1
    for (int first = 0; first < a.batch; first += kThreads) {
      const bool loaded = kAgain && a.batch <= kThreads;
      const unsigned count = loaded ? shared.end[kThreads - 1] : load_chunk(first);
#pragma unroll 1
      for (unsigned n = thread; n < count; n += kThreads) {
        const int s = sequence_of_tile(n), q_tile = static_cast<int>(n - (s == 0 ? 0 : shared.end[s - 1]));
        const int64 key_tiles = key_tiles_of(first, s, q_tile);
        if (reads_mask(C) && key_tiles < 0) continue;
        on_tile(shared.bucket[bucket_of(key_tiles)], ListedTile{first + s, q_tile});
      }
      __syncthreads();
    }
  }
  __device__ __forceinline__ void run() const {
    shared.bucket[thread] = 0;
    __syncthreads();
    for_each_tile<false>([](unsigned& bucket, ListedTile) { atomicAdd(&bucket, 1u); });
    const unsigned in_bucket = shared.bucket[thread], end = prefix_sum(in_bucket);
    if (thread == kThreads - 1) *p.list.count = end, *p.list.next = 0;
    shared.bucket[thread] = end - in_bucket;
    __syncthreads();
    for_each_tile<true>([&](unsigned& bucket, ListedTile tile) { p.list.tiles[atomicAdd(&bucket, 1u)] = tile; });
  }
};

template <Sm90ForwardConfig C>
__device__ __forceinline__ void sm90_tile_list(const Sm90ForwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename TileLister<C>::Shared*>(memory);
  static_assert(sizeof shared == kTileListBytes);
  griddepcontrol_launch_dependents();  // the forward kernel waits for the end of this one
  if constexpr (reads_mask(C)) griddepcontrol_wait();
  TileLister<C>{p, p.forward.attention, shared, static_cast<int>(threadIdx.x)}.run();
}

}  // namespace cuflash
