// The portable kernel over a KV cache. One launch appends new rows, rotates queries, and computes attention. One CTA
// takes one row tile (queries of all heads that share keys) and one split of its keys (kv/geometry.h). The last split
// of a row tile reduces the partials in the workspace (kv/epilogue.h). There is no producer warp: all warps load and
// compute.
//
//   prologue   start loading keys (kv/cp_async_keys.h) | load Q | append
//   mainloop   wait for a key tile | scores, softmax, O += P V
//   epilogue   barrier | partials of the warps to shared memory | barrier | reduce them: O, or the partial of a split |
//              barrier | ticket | the last split reduces all splits: O
#pragma once

#include "kv/append.h"
#include "kv/cp_async_keys.h"
#include "kv/epilogue.h"

namespace cuflash {

template <KvConfig C>
__device__ __forceinline__ void run_mainloop(const KvWork<C>& work, Softmax<RealOf<C.element>, 1>& softmax,
                                             typename KvWork<C>::Output& o) {
  constexpr int kThreads = num_threads(C);
  CpAsyncKeys<C> keys(work);
  if (work.is_active() && work.count() > 0) {
    keys.begin();
    load_queries<kThreads, C.element, C.tile_q, C.dim_qk>(work.q_tile(), work.p, work.sequence, work.item, work.rows);
  }
  // Overlaps with the loads of the first key tiles.
  append_rows<C.element, kThreads>(work.p, work.sequence, work.item);
  if (!work.is_active()) return;
  if (threadIdx.x == 0) Epilogue<C>(work).init_ticket();
  work.count_tiles();
  if (work.count() == 0) return;
  const typename KvWork<C>::Rows lane_rows(work.p, work.sequence, work.item, work.rows, work.lane_row());
#pragma unroll 1
  for (int n = 0; n < work.count(); ++n) {
    keys.wait(n);
    work.attend(n, keys.k_tile(n), keys.v_tile(n), lane_rows, softmax, o, [] {});
    keys.publish_offsets(n);
  }
  cp_async_wait<0>();
  __syncthreads();  // all warps have read K and V; the epilogue reuses their memory
}

template <KvConfig C>
__device__ __forceinline__ void run_epilogue(const KvWork<C>& work, Softmax<RealOf<C.element>, 1>& softmax,
                                             const typename KvWork<C>::Output& o) {
  Epilogue<C> epilogue(work);
  epilogue.store_warp_partials(softmax, o);
  __syncthreads();
  epilogue.prepare();
  epilogue.run();
}

template <KvConfig C>
__device__ __forceinline__ void kv_attention(const KvParams& p) {
  using Work = KvWork<C>;
  extern __shared__ __align__(128) unsigned char memory[];
  if (!has_work_item(p, cta_number())) return;
  const Work work(p, memory);
  typename Work::Output o = {};
  Softmax<typename Work::Real, 1> softmax(Work::Rows::scale_log2(p.attention));
  run_mainloop<C>(work, softmax, o);
  if (!work.is_active()) return;
  if constexpr (CpAsyncKeys<C>::kRematerialize) run_epilogue(Work(p, memory), softmax, o);
  else run_epilogue(work, softmax, o);
}

}  // namespace cuflash
