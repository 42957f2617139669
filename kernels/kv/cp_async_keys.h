// K and V pipeline of the portable kernel. All threads of the CTA load with cp.async; there is no producer warp.
//
//   begin             offsets of the first tiles | barrier | start loading stages - 1 of them
//   wait n            wait for tile n | barrier | start loading tile n + stages - 1 | find offsets of tile n + stages
//   publish_offsets   store those offsets to shared memory
//
// KeyOffsets also mark new rows and rows that no query sees. The latter are never read; they are zero in shared memory,
// because a weight of zero would not keep a NaN out of O.
#pragma once

#include "kv/loads.h"
#include "kv/work.h"

namespace cuflash {

template <KvConfig C>
struct CpAsyncKeys {
  static constexpr Element E = C.element;
  static constexpr int kThreads = num_threads(C);
  // If O takes most of the registers, values that the loop rarely needs are recomputed instead of kept.
  static constexpr bool kRematerialize = C.dim_v / C.column_warps > 128 || E == Element::f64;
  using KTile = Tile<E, C.tile_k, C.dim_qk>;
  using VTile = Tile<E, C.tile_k, C.dim_v>;
  static_assert(C.tile_k <= kThreads);

  const KvWork<C>& work;
  KeyOffsets next{};

  __device__ explicit CpAsyncKeys(const KvWork<C>& work) : work(work) {}

  __device__ KTile k_tile(int n) const { return {work.stage_memory(n % C.stages)}; }
  __device__ auto v_tile(int n) const {
    if constexpr (C.v_in_k) return k_tile(n);
    else return VTile{k_tile(n).memory + KTile::kBytes};
  }
  __device__ KeyOffsets* key_offsets(int stage) const { return reinterpret_cast<KeyOffsets*>(work.stage_info(stage)); }
  __device__ __forceinline__ KeyOffsets offsets(int n, int row) const {
    return offsets_of_key(work.p, work.sequence, work.item.b, work.seen, work.first_key(n) + row);
  }
  __device__ bool looks_up(int n) const {
    return static_cast<int>(threadIdx.x) < C.tile_k && n + C.stages < work.count();
  }

  __device__ __forceinline__ void load(int n) const {
    const KvParams& p = work.p;
    const AttentionParams& a = p.attention;
    const KeyOffsets* const offsets_of_rows = key_offsets(n % C.stages);
    const auto* k_head = static_cast<const StoredOf<E>*>(a.k.data) + work.item.head_k * a.k.head_stride;
    const auto* v_head = static_cast<const StoredOf<E>*>(a.v.data) + work.item.head_k * a.v.head_stride;
    load_cached<false, C.copy, kThreads>(k_tile(n), offsets_of_rows, k_head, a.dim_qk);
    if constexpr (!C.v_in_k) load_cached<true, C.copy, kThreads>(v_tile(n), offsets_of_rows, v_head, a.dim_v);
    const int k_first = work.first_key(n);
    if (work.sequence.pad + k_first + C.tile_k <= work.sequence.old_end || work.sequence.new_count == 0) return;
    const CachedSequence s = kRematerialize ? cached_sequence(p, work.item.b) : work.sequence;
    const auto is_new = [&](int row) { return offsets_of_rows[row].k == kNewRow; };
    load_new<false, kThreads, E, C.tile_k, C.dim_qk>(k_tile(n), is_new, p, s, work.item, k_first);
    if constexpr (!C.v_in_k)
      load_new<true, kThreads, E, C.tile_k, C.dim_v>(v_tile(n), is_new, p, s, work.item, k_first);
  }

  __device__ __forceinline__ void begin() const {
    for (int n = static_cast<int>(threadIdx.x); n < C.stages * C.tile_k; n += kThreads)
      if (n / C.tile_k < work.count()) key_offsets(0)[n] = offsets(n / C.tile_k, n % C.tile_k);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < C.stages - 1; ++n) {
      if (n < work.count()) load(n);
      cp_async_commit();  // an empty group keeps the number of pending groups right
    }
  }
  __device__ __forceinline__ void wait(int n) {
    cp_async_wait<C.stages - 2>();
    __syncthreads();
    if (n + C.stages - 1 < work.count()) load(n + C.stages - 1);
    cp_async_commit();
    // Looked up now and stored after the products, which hide the latency.
    if (looks_up(n)) next = offsets(n + C.stages, static_cast<int>(threadIdx.x));
  }
  __device__ __forceinline__ void publish_offsets(int n) const {
    if (looks_up(n)) key_offsets(n % C.stages)[threadIdx.x] = next;
  }
};

}  // namespace cuflash
