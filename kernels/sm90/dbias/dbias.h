// dBias for f16 and bf16 on Hopper (sm_90a): dS, summed over the batch entries, heads and queries that share the bias.
//
// A CTA owns a tile of the bias. It recomputes S and dP of everything that shares the tile and keeps the sums in
// registers, so that dBias is exact to f32, bitwise reproducible, and needs neither a workspace nor atomic additions.
// Writing dS in the main kernel instead would round it to 16 bits before it is summed, or add f32 tiles of the whole
// bias to memory that L2 does not hold.
//
//   producer warp         TMA loads of Q and K, then dO and V, of one (batch, head) after the other; bias, mask and row
//                         statistics (sm90/dbias/producer.h)
//   consumer warpgroups   two, or one if sequences are short, with 64 queries each: S = Q K^T, dP = dO V^T, sums += P (dP - delta)
//                         (sm90/dbias/consumer.h)
//
//   registers of a consumer thread   S, dP and the sums tile_k / 2 each
//
// Tiles of the bias are taken by ticket, since many of them may be hidden by a causal mask or a window. A pair depends
// only on its query and its key, so non-finite rows need no care: hidden pairs are selected away, and dS is 0 where P
// is 0.
#pragma once

#include "ptx/grid.h"
#include "sm90/dbias/consumer.h"
#include "sm90/dbias/producer.h"

namespace cuflash {

template <Sm90DbiasConfig C>
__device__ __forceinline__ void sm90_dbias(const Sm90BackwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const DbiasPipeline<C> pipeline{shared_address(memory)};
  if (threadIdx.x == 0) pipeline.init();
  __syncthreads();
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32), group = warp / 4;
  if (group == 0) {
    setmaxnreg_dec<producer_registers(C)>();
    if (warp == 0 && lane_id() == 0) DbiasProducer<C>(p, pipeline).run();
  } else {
    setmaxnreg_inc<consumer_registers(C)>();
    DbiasConsumer<C>(p, pipeline, group - 1).run();
  }
}

}  // namespace cuflash
