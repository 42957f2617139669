// dQ alone for f16 and bf16 on Hopper (sm_90a), without sums in global memory: every row is summed by one warpgroup, in one
// order, so that its bits are the same in every call. CTAs stay on their multiprocessor and take tiles of queries in turns,
// as those of sm90_forward.h do.
//
//   copying warpgroup    warp 0: K, V   warp 1: Q, dO, statistics   warp 3: counts, if no other kernel does
//                        (hopper/dq_copies.h)
//   each of the others   64 queries: S = Q K^T, dP = dO V^T, dQ += dS K, with dS in registers   (hopper/dq_computation.h)
//
//   registers            of a thread that computes: dQ dim_qk / 2, S and dP tile_k / 2 each, narrow dS tile_k / 4
//
//                        D      queries x keys   places of K, V, Q   shared    dQ + S + dP + dS of what a thread may have
//                        64     192 x 64         4, 4, 2             164 KiB    32 + 32 + 32 + 16 of 160
//                        128    192 x 64         4, 4, 1             226 KiB    64 + 32 + 32 + 16 of 160
//                        256    128 x 64         2, 1, 1             225 KiB   128 + 32 + 32 + 16 of 232
//
// What nobody sees does not exist, and a weight of 0 hides no NaN from a product:
//   - Rows of Q and dO beyond a length are multiplied as they are: what comes out is theirs alone, and nobody writes it.
//   - Weights of hidden pairs are selected away, and so is a dS whose weight is 0: V may hold anything where nobody sees it.
//   - Where some pair of a tile is hidden, scores tell whether an element of K is not finite: then dS K is summed by a
//     selection. So it is where LSE are large, which is as seldom.
#pragma once

#include "sm90/dq_consumer.h"
#include "sm90/dq_producer.h"

namespace cuflash {

template <Sm90DqConfig C>
__device__ __forceinline__ void sm90_dq(const Sm90BackwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const DqPipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) pipeline.init();
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32), group = warp / 4;
  if (group == 0) {
    setmaxnreg_dec<producer_registers(C)>();
    if (warp == 0 && lane_id() == 0) load_keys_and_values<C>(p, pipeline);
    if (warp == 1 && lane_id() < C.warpgroups) load_queries<C>(p, pipeline);
    if (warp == 3 && lane_id() == 0) count_visited_tiles<C>(p);
  } else {
    setmaxnreg_inc<consumer_registers(C)>();
    DqConsumer<C>(p, pipeline, group - 1).run();
  }
}

}  // namespace cuflash
