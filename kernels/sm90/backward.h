// dK, dV and dQ for f16 and bf16 on Hopper (sm_90a), between the portable kernels that prepare the workspace and finish
// dQ; or dK and dV alone, beside sm90_dq.h. A CTA keeps some keys and walks over the tiles of 64 queries that see them,
// as backward.h does, then takes the next keys; its warpgroups have parts of their own, and products and copies are those
// of Hopper:
//
//   the first 2 or 3  64 keys each: S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q      (hopper/key_group.h)
//                     or the same 64, where one has dV and the other dK, without dQ             (hopper/split_groups.h)
//   the last          copies Q, dO and statistics; dQ += dS K, into global memory               (hopper/query_group.h)
//
//   registers of a thread with keys:  dK dim_qk / 2, dV dim_v / 2, S or dP or dS 32, P or narrow dS 16
//   registers of one of the others:   64 columns of dQ 32
//
//                        D      keys   stages   shared    registers   dK + dV + S + P
//                        64     192    4        187 KiB   144         32 + 32 + 32 + 16
//                        128    128    3        226 KiB   208         64 + 64 + 32 + 16
//   without dQ           64     192    4        139 KiB   144         the same
//                        128    128    4        211 KiB   224         the same, and room for dP beside S
//                        256    64     2        209 KiB   224         128 or 128 + 32 + 16
//
//   step n          those that have keys                              the others
//                   P | dP, dV | dS | dK, dS to memory, S(n+1)        Q, dO of n + stages - 1 | dS K, 64 columns -> sums
//
// What nobody sees does not exist, and a weight of 0 hides no NaN from a product:
//   - Rows of Q and dO beyond a length are cleared before anybody is told that they are there.
//   - Hidden scores are selected away, and so is a dS whose weight is 0: V may hold anything where nobody sees it.
//   - dS K takes a copy of K without elements that are not finite, if there are some and if somebody must not see all
//     keys.
//   - Queries with something that is not finite, or with an LSE that is large, are flagged by the kernel that prepares;
//     where not everybody sees them they are visited without overlap: their elements are left out of dS^T Q, and dV is
//     summed by a selection.
#pragma once

#include "portable/backward/task.h"
#include "sm90/backward_producer.h"
#include "sm90/dk_dv_consumer.h"
#include "sm90/split_dk_dv.h"

namespace cuflash {

template <Sm90BackwardConfig C>
__device__ __forceinline__ void sm90_backward(const Sm90BackwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const BackwardPipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) {
    pipeline.init();
    pipeline.task(0) = next_task<shared_config(C)>(p.backward);
  }
  if (threadIdx.x == 32) prefetch(p.k), prefetch(p.q), prefetch(p.dout), prefetch(p.v);
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  if (group == consumer_warpgroups(C)) {
    setmaxnreg_dec<producer_registers(C)>();
    BackwardProducer<C>(p, pipeline).run();
  } else {
    setmaxnreg_inc<consumer_registers(C)>();
    if constexpr (!split_dk_dv(C)) DkDvConsumer<C>(p, pipeline, group).run();
    else if (group == 0) DvConsumer<C>(p, pipeline).run();
    else DkConsumer<C>(p, pipeline).run();
  }
}

}  // namespace cuflash
