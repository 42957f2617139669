// dQ alone for f16 and bf16 on Hopper (sm_90a). One warpgroup accumulates a row in registers, in a fixed order, so that
// dQ is bitwise reproducible and needs no accumulator in global memory. The kernel is persistent and schedules query
// tiles as sm90/forward/forward.h does.
//
//   producer warpgroup   warp 0: K, V   warp 1: Q, dO, row statistics   warp 2: waits for the main kernel
//                        warp 3: tile counts, if no other kernel counts (sm90/dq/producer.h)
//   consumer warpgroups  64 queries each: S = Q K^T, dP = dO V^T, dQ += dS K, with dS in registers (sm90/dq/consumer.h)
//
//   registers            of a consumer thread: dQ dim_qk / 2, S and dP tile_k / 2 each, 16-bit dS tile_k / 4
//
//                        D      queries x keys   stages of K, V, Q   shared    dQ + S + dP + dS of the register limit
//                        64     192 x 64         4, 4, 2             164 KiB    32 + 32 + 32 + 16 of 160
//                        128    192 x 64         4, 4, 1             226 KiB    64 + 32 + 32 + 16 of 160
//                        256    128 x 64         2, 1, 1             225 KiB   128 + 32 + 32 + 16 of 232
//
// A probability of 0 does not stop a NaN: 0 * NaN is NaN in wgmma. Values that a row must not see are therefore kept
// out:
//   - Rows of Q and dO beyond a length are multiplied as they are: they affect only their own rows of dQ, which are not
//     stored.
//   - P of hidden pairs is selected away, and so is dS where P is 0: V may hold anything at hidden positions.
//   - In a masked tile the scores reveal a non-finite element of K; dS K is then accumulated with a select. Tiles with
//     a large LSE take the same path; both are rare.
#pragma once

#include "ptx/grid.h"
#include "sm90/dq/consumer.h"
#include "sm90/dq/producer.h"

namespace cuflash {

template <Sm90DqConfig C>
__device__ __forceinline__ void sm90_dq(const Sm90BackwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const DqPipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) pipeline.init();
  // The main kernel starts its dependents when the prepare kernel has completed, and writes nothing that is read here.
  // Without a main kernel, this kernel follows the prepare kernel, whose statistics it reads.
  if (p.counts_in_dq) griddepcontrol_wait();
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32), group = warp / 4;
  if (group == 0) {
    setmaxnreg_dec<producer_registers(C)>();
    if (warp == 0 && lane_id() == 0) load_keys_and_values<C>(p, pipeline);
    if (warp == 1 && lane_id() < C.warpgroups) load_queries<C>(p, pipeline);
    if (!reads_mask(C) && warp == 3 && lane_id() == 0) count_visited_tiles<C>(p);  // lists count those of a mask
    // Later kernels of the stream wait only for this grid, so it must not end before the main kernel.
    if (warp == 2 && lane_id() == 0) griddepcontrol_wait();
  } else {
    setmaxnreg_inc<consumer_registers(C)>();
    DqConsumer<C>(p, pipeline, group - 1).run();
  }
}

}  // namespace cuflash
