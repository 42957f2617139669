// Backward for f16 and bf16 on Hopper (sm_90a): dK and dV, and dQ unless sm90/dq/dq.h computes it. The kernel runs between
// the portable kernels that prepare the workspace and convert dQ. It is persistent: a CTA takes a key tile from an
// atomic counter and visits the tiles of 64 queries that see it. Warpgroups have roles:
//
//   consumers (1 to 3)  64 keys each: S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q    (sm90/backward/dk_dv_consumer.h)
//                       or two on the same 64 keys, one for dV and one for dK, without dQ       (sm90/backward/split_dk_dv.h)
//   producer (the last) TMA loads of K, V, Q, dO and row statistics; dQ += dS K in global memory, in sums that other
//                       CTAs add to or that the CTA keeps; with one key tile dQ = dS K (sm90/backward/producer.h)
//   or two of them      one for dQ (sm90/backward/dq_adder.h), one that loads and claims tasks (sm90/backward/loader.h)
//
//   registers of a consumer thread:  dK dim_qk / 2, dV dim_v / 2, S or dP or dS 32, 16-bit P or dS 16
//   registers of a thread for dQ:    64 columns of dQ 32
//
//                        D      keys   stages   shared    registers   dK + dV + S + P
//                        64     192    4        187 KiB   144         32 + 32 + 32 + 16
//                        64     64     4        107 KiB   160         the same; two CTAs per SM
//                        32     64     2        74 KiB    112         16 + 16 + 32 + 16; three CTAs per SM
//                        128    128    4        227 KiB   208         64 + 64 + 32 + 16; 64 for dQ, 32 for loads
//   with options         128    128    3        226 KiB   224         the same
//   without dQ           64     192    4        139 KiB   144         the same
//                        128    128    4        211 KiB   224         the same, and separate registers for dP
//                        256    64     2        209 KiB   224         128 or 128 + 32 + 16
//
//   step n          consumers                                         producer
//                   P | dP, dV | dS | dK, dS to shared, S(n+1)        load Q, dO of n + stages - 1 | dS K in panels
//
// A probability of 0 does not stop a NaN: 0 * NaN is NaN in wgmma. Values that a row must not see are therefore kept
// out:
//   - The producer zeroes rows of Q and dO beyond a length before it signals their stage.
//   - Hidden scores are selected away, and so is dS where P is 0: V may hold anything at hidden positions.
//   - dS K reads a copy of K with non-finite elements zeroed, if K has any and some query must not see all keys; or it
//     is accumulated with a select.
//   - The prepare kernel flags query tiles with a non-finite element or a large LSE. Where such a tile is masked it is
//     processed without overlap: its non-finite elements are left out of dS^T Q, and dV is accumulated with a select.
#pragma once

#include "ptx/grid.h"
#include "sm90/backward/dk_dv_consumer.h"
#include "sm90/backward/dq_adder.h"
#include "sm90/backward/loader.h"
#include "sm90/backward/split_dk_dv.h"

namespace cuflash {

template <Sm90BackwardConfig C>
__device__ __forceinline__ void sm90_backward(const Sm90BackwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const BackwardPipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) pipeline.init();
  if (threadIdx.x == 32) prefetch(p.k), prefetch(p.q), prefetch(p.dout), prefetch(p.v);
  if (p.backward.key_tiles) griddepcontrol_wait();  // the prepare kernel writes the list of key tiles
  if (threadIdx.x == 0) {
    if constexpr (keeps_dq(C)) write_task_of_head<portable_view(C)>(pipeline.task(0), p.backward, cta_number(), 0);
    else write_task<portable_view(C)>(pipeline.task(0), p.backward, cta_number());
  }
  // The finish kernel can start on an SM only after this CTA has exited.
  griddepcontrol_wait(), griddepcontrol_launch_dependents();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  if (group == num_threads(C) / kWarpgroupThreads - 1) {
    setmaxnreg_dec<producer_registers(C)>();
    if constexpr (has_loader(C)) BackwardLoader<C>(p, pipeline).run();
    else BackwardProducer<C>(p, pipeline).run();
  } else if (has_loader(C) && group == consumer_warpgroups(C)) {
    setmaxnreg_dec<kDqRegisters>();
    if constexpr (has_loader(C)) DqAdder<C>(p, pipeline).run();
  } else {
    setmaxnreg_inc<consumer_registers(C)>();
    if constexpr (!split_dk_dv(C)) DkDvConsumer<C>(p, pipeline, group).run();
    else if (group == 0) DvConsumer<C>(p, pipeline).run();
    else DkConsumer<C>(p, pipeline).run();
  }
}

}  // namespace cuflash
