// Attention over a KV cache, one launch: new rows are appended, queries turned, and one CTA attends a tile of rows, the
// queries of all heads that share keys, to a part of the keys (cache/geometry.h says which). Whoever of the CTAs of a tile
// of rows comes last adds up what they have written to the workspace (cache/sums.h).
//
//   before          start copying keys (cache/copied_keys.h) | Q | append
//   step            wait for a tile of keys | scores, softmax, accumulate
//   after           barrier | sums of warps to shared memory | barrier | add them up: O, or what a split leaves behind |
//                   barrier | ticket | the last one adds up the splits: O
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
  // While the first keys are on their way.
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
  __syncthreads();  // K and V have been read
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
  Softmax<typename Work::Real, 1> softmax(Work::Rows::factor(p.attention));
  run_mainloop<C>(work, softmax, o);
  if (!work.is_active()) return;
  if constexpr (CpAsyncKeys<C>::kRematerialize) run_epilogue(Work(p, memory), softmax, o);
  else run_epilogue(work, softmax, o);
}

}  // namespace cuflash
