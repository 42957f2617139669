// Attention over a KV cache as cache_attention.h has it, for f16 and bf16 on Hopper (sm_90a): one warp of the CTA brings
// keys and values by tensor copies (cache/boxed_keys.h), the others load queries, append and attend. Of a short call most of
// the time is spent before the first keys and behind the last ones: the copying warp waits for nobody before it copies, not
// even for lengths where they do not matter, and when it is done it rehearses the end.
#pragma once

#include "kv/append.h"
#include "kv/boxed_keys.h"
#include "kv/posted_sums.h"
#include "kv/warpgroup_attention.h"

namespace cuflash {

// Every warp has rows of its own. What it has summed takes the place of keys and values when all have read these.
template <CacheConfig C, class Sums>
__device__ __forceinline__ void attend_by_warps(const CacheWork<C>& work, BoxedKeys<C>& keys, Sums& sums) {
  using Work = CacheWork<C>;
  typename Work::Output o = {};
  Softmax<typename Work::Real, 1> softmax(Work::Rows::factor(work.a));
  const typename Work::Rows lane_rows(work.p, work.sequence, work.at, work.rows, work.lane_row());
  sums.prepare();
  numbered_barrier_wait(BoxedKeys<C>::kStarted, meeting_threads(C));
#pragma unroll 1
  for (int n = 0; n < work.count(); ++n) {
    keys.wait(n);
    work.attend(n, keys.k_tile(keys.ring.stage), keys.v_tile(keys.ring.stage), lane_rows, softmax, o,
                [&] { keys.wait_for_values(); });
    keys.leave();
  }
  keys.wait_for_readers();
  sums.share(softmax, o);
}

template <CacheConfig C, class Sums>
__device__ __forceinline__ void attend_to_boxes(const CacheWork<C>& work, BoxedKeys<C>& keys, Sums& sums) {
  constexpr int kThreads = computing_threads(C);
  if (work.attends())
    load_queries<kThreads, C.element, C.tile_q, C.dim_qk, C.plain != 0>(keys.q_tile(), work.p, work.sequence, work.at,
                                                                        work.rows);
  if constexpr (!C.plain) append_rows<C.element, kThreads>(work.p, work.sequence, work.at);
  if (!work.attends()) return;
  work.count_tiles();
  if constexpr (by_warpgroups(C)) {
    async_proxy_fence();
    numbered_barrier_wait(BoxedKeys<C>::kStarted, meeting_threads(C));
    WarpgroupAttention<C>{work, keys}.attend();
    sums.prepare();  // registers for it are free now
  } else {
    attend_by_warps<C>(work, keys, sums);
  }
  numbered_barrier_wait(BoxedKeys<C>::kEnding, meeting_threads(C));
}

template <CacheConfig C, class Sums>
__device__ __forceinline__ void copy_boxes(BoxedKeys<C>& keys, Sums& sums) {
  numbered_barrier_arrive(BoxedKeys<C>::kStarted, meeting_threads(C));
  keys.copy_all();
  if (lane_id() == 0) sums.look_at_ticket();
  __syncwarp();
  numbered_barrier_arrive(BoxedKeys<C>::kEnding, meeting_threads(C));
  if constexpr (!moves_registers(C)) sums.prepare();
}

// Plain calls have a grid of three dimensions, with a CTA for every item: what is copied first need not wait for divisions.
template <CacheConfig C>
__device__ __forceinline__ CacheItem boxed_item(const HopperCacheParams& p) {
  if constexpr (C.plain) return item_of(p.first, blockIdx.x, blockIdx.y, blockIdx.z);
  else return cache_item(p.cache, cta_number());
}

template <CacheConfig C>
__device__ __forceinline__ void work_on_item(const HopperCacheParams& p, unsigned char* memory, bool copies) {
  const CacheItem at = boxed_item<C>(p);
  if (copies) BoxedKeys<C>::init_first(memory);
  wait_for_grids_before();
  const int cached_rows = p.first.rows[at.b];  // before copies that it would have to wait behind
  typename BoxedKeys<C>::Ahead ahead;
  if (copies) {
    ahead = BoxedKeys<C>::copy_first(p, memory, at);
    BoxedKeys<C>::init_others(memory);
  }
  const CacheWork<C> work(p.cache, memory, at, cached_rows);
  BoxedKeys<C> keys(work, p, ahead);
  typename SumsOf<C>::Type sums(work, copies);
  keys.wait_for_unused();
  if (!copies) attend_to_boxes<C>(work, keys, sums);
  else if (work.attends()) copy_boxes<C>(keys, sums);
  if (copies && moves_registers(C)) return;  // too few registers are left to rehearse with
  if (work.attends()) sums.add();
}

template <CacheConfig C>
__device__ __forceinline__ void hopper_cache(const HopperCacheParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!C.plain && !has_cache_item(p.cache, cta_number())) return;
  const bool copies = BoxedKeys<C>::copies();
  if (copies) prefetch(p.k), prefetch(p.v);
  if constexpr (!moves_registers(C)) {
    work_on_item<C>(p, memory, copies);
  } else if (BoxedKeys<C>::computes()) {
    // Before anything is known of the work: the assembler spills most of what it would have to keep meanwhile.
    BoxedKeys<C>::take_registers();
    work_on_item<C>(p, memory, false);
  } else {
    BoxedKeys<C>::leave_registers();
    if (copies) work_on_item<C>(p, memory, true);
  }
}

}  // namespace cuflash
