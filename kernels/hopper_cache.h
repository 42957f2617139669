// Attention over a KV cache as cache_attention.h has it, for f16 and bf16 on Hopper (sm_90a): one warp of the CTA brings
// keys and values by tensor copies (cache/boxed_keys.h), the others load queries, append and attend. Of a short call most of
// the time is spent before the first keys and behind the last ones: the copying warp waits for nobody before it copies, and
// when it is done it rehearses the end.
#pragma once

#include "cache/append.h"
#include "cache/boxed_keys.h"
#include "cache/sums.h"

namespace cuflash {

template <CacheConfig C>
__device__ __forceinline__ void attend_to_boxes(const CacheWork<C>& work, BoxedKeys<C>& keys) {
  constexpr int kThreads = computing_threads(C);
  using Work = CacheWork<C>;
  if (work.attends()) load_queries<kThreads>(work.q_tile(), work.p, work.sequence, work.at, work.rows);
  append_rows<C.element, kThreads>(work.p, work.sequence, work.at);
  if (!work.attends()) return;
  work.count_tiles();
  numbered_barrier_wait(BoxedKeys<C>::kStarted, meeting_threads(C));
  typename Work::Output o = {};
  typename Work::RowSoftmax softmax(Work::Rows::factor(work.a));
  const typename Work::Rows lane_rows(work.p, work.sequence, work.at, work.rows, work.lane_row());
#pragma unroll 1
  for (int n = 0; n < work.count(); ++n) {
    keys.wait(n);
    // In large tiles rows of whole warps may be missing, and what these read would keep the others waiting.
    if (Work::kBlocks == 1 || work.warp_has_rows())
      work.attend(n, keys.k_tile(keys.ring.stage), keys.v_tile(keys.ring.stage), lane_rows, softmax, o);
    keys.leave();
  }
  numbered_barrier_wait(BoxedKeys<C>::kBarrier, kThreads);  // K and V have been read
  CacheSums<C>{work}.share(softmax, o);
  numbered_barrier_wait(BoxedKeys<C>::kEnding, meeting_threads(C));
}

template <CacheConfig C>
__device__ __forceinline__ void copy_boxes(BoxedKeys<C>& keys, const CacheSums<C>& sums) {
  numbered_barrier_arrive(BoxedKeys<C>::kStarted, meeting_threads(C));
  keys.copy_all();
  if (lane_id() == 0) sums.prepare();
  __syncwarp();
  numbered_barrier_arrive(BoxedKeys<C>::kEnding, meeting_threads(C));
}

template <CacheConfig C>
__device__ __forceinline__ void work_on_item(const HopperCacheParams& p, unsigned char* memory, bool copies) {
  const CacheWork<C> work(p.cache, memory);
  BoxedKeys<C> keys(work, p);
  const CacheSums<C> sums{work, copies};
  if (!copies) attend_to_boxes<C>(work, keys);
  else if (work.attends()) copy_boxes<C>(keys, sums);
  if (copies && moves_registers(C)) return;  // too few registers are left to rehearse with
  if (work.attends()) sums.add();
}

template <CacheConfig C>
__device__ __forceinline__ void hopper_cache(const HopperCacheParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!has_cache_item(p.cache, cta_number())) return;
  const bool copies = BoxedKeys<C>::copies();
  if (copies) prefetch(p.k), prefetch(p.v), BoxedKeys<C>::init(memory);
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
