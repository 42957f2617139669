// The kernel over a KV cache (kv/attention.h) for f16 and bf16 on Hopper (sm_90a): a producer warp loads K and V by TMA
// (kv/tma_keys.h); consumer warps load queries, append new rows and compute. A short call spends most of its time
// before the first keys and after the last ones. Hence the producer issues its first loads without waiting for other
// warps, or for lengths on which they do not depend. When it is done, it runs the epilogue dry to warm the instruction
// cache.
#pragma once

#include "kv/append.h"
#include "kv/exchange_reduce.h"
#include "kv/tma_keys.h"
#include "kv/warpgroup_attention.h"

namespace cuflash {

// Consumer mainloop with mma.sync: each warp has its own rows and keys. Its partials overwrite the K and V stages once
// all consumers have read them.
template <KvConfig C, class AnyEpilogue>
__device__ __forceinline__ void attend_by_warps(const KvWork<C>& work, TmaKeys<C>& keys, AnyEpilogue& epilogue) {
  using Work = KvWork<C>;
  typename Work::Output o = {};
  Softmax<typename Work::Real, 1> softmax(Work::Rows::scale_log2(work.a));
  const typename Work::Rows lane_rows(work.p, work.sequence, work.item, work.rows, work.lane_row());
  epilogue.prepare();
  named_barrier_sync(kPrologueBarrier, active_threads(C));
#pragma unroll 1
  for (int n = 0; n < work.count(); ++n) {
    keys.wait(n);
    work.attend(n, keys.k_tile(keys.ring.stage), keys.v_tile(keys.ring.stage), lane_rows, softmax, o,
                [&] { keys.wait_for_values(); });
    keys.release_and_advance();
  }
  keys.sync_consumers();
  epilogue.store_warp_partials(softmax, o);
}

template <KvConfig C, class AnyEpilogue>
__device__ __forceinline__ void run_consumer(const KvWork<C>& work, TmaKeys<C>& keys, AnyEpilogue& epilogue) {
  constexpr int kThreads = consumer_threads(C);
  if (work.is_active())
    load_queries<kThreads, C.element, C.tile_q, C.dim_qk, C.fast_decode != 0>(keys.q_tile(), work.p, work.sequence,
                                                                              work.item, work.rows);
  if constexpr (!C.fast_decode) append_rows<C.element, kThreads>(work.p, work.sequence, work.item);
  if (!work.is_active()) return;
  work.count_tiles();
  if constexpr (by_warpgroups(C)) {
    async_proxy_fence();
    named_barrier_sync(kPrologueBarrier, active_threads(C));
    WarpgroupAttention<C>{work, keys}.attend();
    epilogue.prepare();  // the registers for it are free only now
  } else {
    attend_by_warps<C>(work, keys, epilogue);
  }
  named_barrier_sync(kEpilogueBarrier, active_threads(C));
}

template <KvConfig C, class AnyEpilogue>
__device__ __forceinline__ void run_producer(TmaKeys<C>& keys, AnyEpilogue& epilogue) {
  named_barrier_arrive(kPrologueBarrier, active_threads(C));
  keys.load_all();
  if (lane_id() == 0) epilogue.init_ticket();
  __syncwarp();
  named_barrier_arrive(kEpilogueBarrier, active_threads(C));
  if constexpr (!uses_setmaxnreg(C)) epilogue.prepare();
}

// Fast decode has a three-dimensional grid with one CTA per work item, so that the first loads do not wait for
// divisions.
template <KvConfig C>
__device__ __forceinline__ WorkItem work_item_of_cta(const Sm90KvParams& p) {
  if constexpr (C.fast_decode) return work_item(p.prologue, blockIdx.x, blockIdx.y, blockIdx.z);
  else return work_item(p.cache, cta_number());
}

// A plain forward call has no lengths in memory if every sequence fills K and V. Its kernels are those with kWholeCache
// and those for many rows; others do not check.
template <KvConfig C>
__device__ __forceinline__ int cached_rows_of(const Sm90KvParams& p, int b) {
  if constexpr (C.fast_decode == kWholeCache) return p.cache.attention.len_k;
  else if constexpr (by_warpgroups(C)) return p.prologue.rows ? p.prologue.rows[b] : p.cache.attention.len_k;
  else return p.prologue.rows[b];
}

template <KvConfig C>
__device__ __forceinline__ void run_work_item(const Sm90KvParams& p, unsigned char* memory, bool producer) {
  const WorkItem item = work_item_of_cta<C>(p);
  if (producer) TmaKeys<C>::init_prologue_barriers(memory);
  griddepcontrol_wait();
  const int cached_rows = cached_rows_of<C>(p, item.b);  // issued before the TMA loads, or it would queue behind them
  typename TmaKeys<C>::Prefetched prefetched;
  if (producer) {
    prefetched = TmaKeys<C>::load_prologue(p, memory, item);
    TmaKeys<C>::init_barriers(memory);
  }
  const KvWork<C> work(p.cache, memory, item, cached_rows);
  TmaKeys<C> keys(work, p, prefetched);
  typename EpilogueFor<C>::Type epilogue(work, producer);
  keys.drain_unused();
  if (!producer) run_consumer<C>(work, keys, epilogue);
  else if (work.is_active()) run_producer<C>(keys, epilogue);
  if (producer && uses_setmaxnreg(C)) return;  // too few registers are left to run the epilogue
  if (work.is_active()) epilogue.run();
}

template <KvConfig C>
__device__ __forceinline__ void sm90_kv(const Sm90KvParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (!C.fast_decode && !has_work_item(p.cache, cta_number())) return;
  const bool producer = TmaKeys<C>::is_producer();
  if (producer) prefetch(p.k), prefetch(p.v);
  if constexpr (!uses_setmaxnreg(C)) {
    run_work_item<C>(p, memory, producer);
  } else if (TmaKeys<C>::is_consumer()) {
    // setmaxnreg comes before the work item is decoded, because ptxas would spill most values that are live across it.
    TmaKeys<C>::setmaxnreg_inc();
    run_work_item<C>(p, memory, false);
  } else {
    TmaKeys<C>::setmaxnreg_dec();
    if (producer) run_work_item<C>(p, memory, true);
  }
}

}  // namespace cuflash
