// Forward for f16 and bf16 on Hopper (sm_90a). CTAs stay on their multiprocessor and take tiles of queries in turns; in
// each one warpgroup brings tiles to shared memory by tensor copies, and the others multiply them by warpgroup products.
//
//   copying warpgroup    warp 0: K, V   warp 1: Q   warp 2: clears values that nobody sees   warp 3: statistics
//                        (hopper/copies.h)
//   each of the others   64 queries; Q K(n+1), then P V(n), and under it softmax of n+1      (hopper/computation.h)
//
//   shared memory        64 x dim_qk for each computing warpgroup, twice with kPrefetchQ, 64 x 128 more with kStoreBySmem,
//                        stages x tile_k x (dim_qk + dim_v), 16 bit
//   registers            of a thread that computes: O dim_v / 2, scores tile_k / 2, weights tile_k / 4
//
//                        D    tile      stages   shared    O + S + P of what a thread may have
//                        64   192 x 128   4      152 KiB    32 + 64 + 32 of 160
//                        128  192 x 80    4      208 KiB    64 + 40 + 20 of 160
//                        128  128 x 128   2      224 KiB    64 + 64 + 32 of 232, both; short ones
//                        256  128 x 80    2      224 KiB   128 + 40 + 20 of 232
#pragma once

#include "sm90/consumer.h"
#include "sm90/producer.h"

namespace cuflash {

template <Sm90ForwardConfig C>
__device__ __forceinline__ void sm90_forward(const Sm90ForwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Pipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) pipeline.init();
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32), group = warp / 4;
  if (group == 0) {
    setmaxnreg_dec<producer_registers(C)>();
    if (warp == 0 && lane_id() == 0) load_keys_and_values<C>(p, pipeline);
    if (warp == 1 && lane_id() < C.warpgroups) load_queries<C>(p, pipeline);
    if (warp == 2) sanitize_values<C>(p, pipeline);
    if (warp == 3 && lane_id() == 0) count_visited_tiles<C>(p);
  } else {
    setmaxnreg_inc<consumer_registers(C)>();
    Consumer<C>(p, pipeline, group - 1).run();
  }
}

}  // namespace cuflash
