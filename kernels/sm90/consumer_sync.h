// Synchronisation of consumer warpgroups: ping-pong by named barriers, and the mbarrier arrivals that release a stage
// to the producer.
#pragma once

#include "ptx/barrier.h"
#include "tile/operand.h"

namespace cuflash {

// Ping-pong scheduling: the consumer warpgroups issue wgmma.mma_async in a fixed rotation, so that one computes softmax
// while another keeps the tensor cores busy. Warpgroup g waits on named barrier kFirstBarrier + g. Every tile that the CTA
// visits is one turn of every warpgroup.
template <bool kEnabled, int kWarpgroups, int kFirstBarrier>
struct PingPong {
  static __device__ void wait(int group) {
    if constexpr (kEnabled) named_barrier_sync(kFirstBarrier + group, 2 * kWarpgroupThreads);
  }
  static __device__ void pass(int group) {
    if constexpr (kEnabled)
      named_barrier_arrive(kFirstBarrier + (group + 1 == kWarpgroups ? 0 : group + 1), 2 * kWarpgroupThreads);
  }
};

// One arrival per warp: the warp no longer reads the stage.
__device__ __forceinline__ void release_stage(unsigned barrier, int lane = lane_id()) {
  if (lane == 0) mbarrier_arrive(barrier);
}

}  // namespace cuflash
