// fence_operand (ptx/warpgroup.h) for whole accumulators and operands of wgmma.mma_async.
#pragma once

#include "ptx/warpgroup.h"
#include "tile/operand.h"

namespace cuflash {

template <int kTiles>
__device__ __forceinline__ void fence_operands(Accumulator<float> (&x)[kTiles]) {
#pragma unroll
  for (int n = 0; n < 4 * kTiles; ++n) fence_operand(x[n / 4].x[n % 4]);
}
template <int kTiles>
__device__ __forceinline__ void fence_operands(Accumulator<float> (&x)[1][kTiles]) {
  fence_operands(x[0]);
}
template <int kSteps>
__device__ __forceinline__ void fence_operands(unsigned (&x)[kSteps][4]) {
#pragma unroll
  for (int n = 0; n < 4 * kSteps; ++n) fence_operand(x[n / 4][n % 4]);
}

}  // namespace cuflash
