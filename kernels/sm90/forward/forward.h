// Forward for f16 and bf16 on Hopper (sm_90a). The kernel is persistent: every CTA processes a sequence of query tiles.
// It is warp-specialised: one producer warpgroup loads tiles with TMA, and consumer warpgroups multiply them with
// wgmma.
//
//   producer warpgroup   warp 0: K, V   warp 1: Q   warp 2: zeroes hidden values
//                        warp 3: tickets, tile statistics, bias   (sm90/forward/producer.h)
//   consumer warpgroups  64 queries each: Q K(n+1), then P V(n), which overlaps with softmax of n+1   (sm90/forward/consumer.h)
//
//   shared memory        64 x dim_qk for each consumer warpgroup, twice with kPrefetchQ, 64 x 128 with kStoreBySmem,
//                        stages x tile_k x (dim_qk + dim_v), 16 bit; with kTmaBias stages x tile_q x tile_k, 16 bit,
//                        with a mask tensor stages x tile_q x 128 bits
//   registers            of a consumer thread: O dim_v / 2, S tile_k / 2, P tile_k / 4, twice where scores stay
//
//                        D    tile      stages   shared    O + S + P of the register limit
//                        64   256 x 64    4      161 KiB    32 + 32 + 32 of 112, with kFirstMax
//                        64   192 x 96    4      169 KiB    32 + 48 + 48 of 160, the same, with softcap or ALiBi
//                        64    64 x 64    2       48 KiB    32 + 32 + 16 of 96; one key tile, four CTAs per SM
//                        64    64 x 64    3       64 KiB    32 + 32 + 32 of 128, with kFirstMax; three CTAs per SM
//                        128  192 x 64    2      209 KiB    64 + 32 + 32 of 160, with kFirstMax
//                        128  128 x 128   2      225 KiB    64 + 64 + 64 of 232, the same; less padding
//                        128  64 x 128    3      208 KiB    64 + 64 + 32 of 255; small grids
//                        256  128 x 64    2      225 KiB   128 + 32 + 32 of 232, the same
#pragma once

#include "ptx/grid.h"
#include "sm90/forward/consumer.h"
#include "sm90/forward/producer.h"

namespace cuflash {

// As the producer without pages, but a whole warp loads K and V, and no warp keeps its number in a register: there is
// none to spare.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void run_paged_producer(const Sm90ForwardParams& p, const Pipeline<C>& pipeline, int warp) {
  if (warp == 0) return load_paged_keys_and_values<C>(p, pipeline);
  if (warp == 1) {
    if (lane_id() < C.warpgroups) load_queries<C>(p, pipeline);
    return;
  }
  if (warp == 2) return sanitize_values<C>(p, pipeline);
  if (lane_id() == 0) run_last_producer<C>(p, pipeline);
}

template <Sm90ForwardConfig C>
__device__ __forceinline__ void sm90_forward(const Sm90ForwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Pipeline<C> pipeline{shared_address(memory)};
  if constexpr (splits_keys(C)) griddepcontrol_launch_dependents();  // combine_splits.h waits for this grid's end
  if (threadIdx.x == 0) pipeline.init();
  if (threadIdx.x == 32) prefetch_maps<C>(p);
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32), group = warp / 4;
  if (group == 0) {
    if constexpr (moves_registers(C)) setmaxnreg_dec<producer_registers(C)>();
    if constexpr (has_paged_keys(C)) {
      run_paged_producer<C>(p, pipeline, warp);
    } else {
      if (warp == 0 && lane_id() == 0) load_keys_and_values<C>(p, pipeline);
      if (warp == 1 && lane_id() < C.warpgroups) load_queries<C>(p, pipeline);
      if (warp == 2) sanitize_values<C>(p, pipeline);
      if (warp == 3 && lane_id() == 0) run_last_producer<C>(p, pipeline);
    }
  } else {
    if constexpr (moves_registers(C)) setmaxnreg_inc<consumer_registers(C)>();
    Consumer<C>(p, pipeline, group - 1).run();
  }
}

}  // namespace cuflash
