// dQ alone for f16 and bf16 on Hopper (sm_90a), without sums in global memory: every row is summed by one warpgroup, in one
// order, so that its bits are the same in every call. CTAs stay on their multiprocessor and take tiles of queries in turns,
// as those of hopper_forward.h do.
#pragma once

#include "hopper/dq_computation.h"
#include "hopper/dq_copies.h"

namespace cuflash {

template <HopperDqConfig C>
__device__ __forceinline__ void hopper_dq(const HopperBackwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const DqPipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) pipeline.init();
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32), group = warp / 4;
  if (group == 0) {
    leave_registers<copying_registers(C)>();
    if (warp == 0 && lane_id() == 0) copy_keys_and_values<C>(p, pipeline);
    if (warp == 1 && lane_id() < C.warpgroups) copy_queries<C>(p, pipeline);
    if (warp == 3 && lane_id() == 0) count_visits<C>(p);
  } else {
    take_registers<computing_registers(C)>();
    DqComputation<C>(p, pipeline, group - 1).run();
  }
}

}  // namespace cuflash
