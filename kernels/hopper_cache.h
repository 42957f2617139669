// Attention over a KV cache as cache_attention.h has it, for f16 and bf16 on Hopper (sm_90a): one warp of the CTA brings
// keys and values by tensor copies (cache/boxed_keys.h), the others load queries, append and attend.
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
  numbered_barrier_wait(BoxedKeys<C>::kBarrier, kThreads);
  typename Work::Output o = {};
  Softmax<typename Work::Real, 1> softmax(Work::Rows::factor(work.a));
  const typename Work::Rows lane_rows(work.p, work.sequence, work.at, work.rows, work.lane_row());
#pragma unroll 1
  for (int n = 0; n < work.count(); ++n) {
    keys.wait(n);
    work.attend(n, keys.k_tile(keys.ring.stage), keys.v_tile(keys.ring.stage), lane_rows, softmax, o);
    keys.leave();
  }
  numbered_barrier_wait(BoxedKeys<C>::kBarrier, kThreads);  // K and V have been read
  CacheSums<C>{work}.share(softmax, o);
}

template <CacheConfig C>
__device__ __forceinline__ void hopper_cache(const HopperCacheParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!has_cache_item(p.cache, cta_number())) return;
  if (BoxedKeys<C>::copies()) prefetch(p.k), prefetch(p.v);
  const CacheWork<C> work(p.cache, memory);
  BoxedKeys<C> keys(work, p);
  if (threadIdx.x == 0) keys.init();
  __syncthreads();
  const CacheSums<C> sums{work};
  if (!keys.copies()) {
    attend_to_boxes<C>(work, keys);
  } else if (work.attends()) {
    keys.copy_all();
    if (lane_id() == 0) sums.prepare();
  }
  if (!work.attends()) return;
  __syncthreads();
  sums.add();
}

}  // namespace cuflash
