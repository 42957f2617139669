// Attention over a KV cache as kv_attention.h has it, for f16 and bf16 on Hopper (sm_90a): one warp of the CTA brings
// keys and values by tensor copies (cache/boxed_keys.h), the others load queries, append and attend. Of a short call most of
// the time is spent before the first keys and behind the last ones: the copying warp waits for nobody before it copies, not
// even for lengths where they do not matter, and when it is done it warms_icache the end.
#pragma once

#include "kv/append.h"
#include "kv/exchange_reduce.h"
#include "kv/tma_keys.h"
#include "kv/warpgroup_attention.h"

namespace cuflash {

// Every warp has rows of its own. What it has summed takes the place of keys and values when all have read these.
template <KvConfig C, class Sums>
__device__ __forceinline__ void attend_by_warps(const KvWork<C>& work, TmaKeys<C>& keys, Sums& sums) {
  using Work = KvWork<C>;
  typename Work::Output o = {};
  Softmax<typename Work::Real, 1> softmax(Work::Rows::factor(work.a));
  const typename Work::Rows lane_rows(work.p, work.sequence, work.at, work.rows, work.lane_row());
  sums.prepare();
  named_barrier_sync(TmaKeys<C>::kStarted, meeting_threads(C));
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

template <KvConfig C, class Sums>
__device__ __forceinline__ void attend_to_boxes(const KvWork<C>& work, TmaKeys<C>& keys, Sums& sums) {
  constexpr int kThreads = consumer_threads(C);
  if (work.attends())
    load_queries<kThreads, C.element, C.tile_q, C.dim_qk, C.fast_decode != 0>(keys.q_tile(), work.p, work.sequence,
                                                                              work.at, work.rows);
  if constexpr (!C.fast_decode) append_rows<C.element, kThreads>(work.p, work.sequence, work.at);
  if (!work.attends()) return;
  work.count_tiles();
  if constexpr (by_warpgroups(C)) {
    async_proxy_fence();
    named_barrier_sync(TmaKeys<C>::kStarted, meeting_threads(C));
    WarpgroupAttention<C>{work, keys}.attend();
    sums.prepare();  // registers for it are free now
  } else {
    attend_by_warps<C>(work, keys, sums);
  }
  named_barrier_sync(TmaKeys<C>::kEnding, meeting_threads(C));
}

template <KvConfig C, class Sums>
__device__ __forceinline__ void copy_boxes(TmaKeys<C>& keys, Sums& sums) {
  named_barrier_arrive(TmaKeys<C>::kStarted, meeting_threads(C));
  keys.copy_all();
  if (lane_id() == 0) sums.look_at_ticket();
  __syncwarp();
  named_barrier_arrive(TmaKeys<C>::kEnding, meeting_threads(C));
  if constexpr (!moves_registers(C)) sums.prepare();
}

// Plain calls have a grid of three dimensions, with a CTA for every item: what is copied first need not wait for divisions.
template <KvConfig C>
__device__ __forceinline__ KvItem boxed_item(const Sm90KvParams& p) {
  if constexpr (C.fast_decode) return item_of(p.first, blockIdx.x, blockIdx.y, blockIdx.z);
  else return cache_item(p.cache, cta_number());
}

template <KvConfig C>
__device__ __forceinline__ void work_on_item(const Sm90KvParams& p, unsigned char* memory, bool copies) {
  const KvItem at = boxed_item<C>(p);
  if (copies) TmaKeys<C>::init_first(memory);
  griddepcontrol_wait();
  const int cached_rows = p.first.rows[at.b];  // before copies that it would have to wait behind
  typename TmaKeys<C>::Ahead ahead;
  if (copies) {
    ahead = TmaKeys<C>::copy_first(p, memory, at);
    TmaKeys<C>::init_others(memory);
  }
  const KvWork<C> work(p.cache, memory, at, cached_rows);
  TmaKeys<C> keys(work, p, ahead);
  typename SumsOf<C>::Type sums(work, copies);
  keys.wait_for_unused();
  if (!copies) attend_to_boxes<C>(work, keys, sums);
  else if (work.attends()) copy_boxes<C>(keys, sums);
  if (copies && moves_registers(C)) return;  // too few registers are left to rehearse with
  if (work.attends()) sums.add();
}

template <KvConfig C>
__device__ __forceinline__ void sm90_kv(const Sm90KvParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!C.fast_decode && !has_cache_item(p.cache, cta_number())) return;
  const bool copies = TmaKeys<C>::copies();
  if (copies) prefetch(p.k), prefetch(p.v);
  if constexpr (!moves_registers(C)) {
    work_on_item<C>(p, memory, copies);
  } else if (TmaKeys<C>::computes()) {
    // Before anything is known of the work: the assembler spills most of what it would have to keep meanwhile.
    TmaKeys<C>::setmaxnreg_inc();
    work_on_item<C>(p, memory, false);
  } else {
    TmaKeys<C>::setmaxnreg_dec();
    if (copies) work_on_item<C>(p, memory, true);
  }
}

}  // namespace cuflash
