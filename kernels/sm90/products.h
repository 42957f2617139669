// What a warpgroup multiplies in attention over tiles of keys: scores from queries and keys in shared memory, outputs from
// weights in registers and values in shared memory. Asynchronous: whoever issues them waits, and pins what they write.
#pragma once

#include "ptx/compiler.h"
#include "sm90/fence_operands.h"
#include "tile/swizzled.h"

namespace cuflash {

// A tile whose descriptors do not stay in registers, all of them, between products.
template <class AnyTile>
__device__ __forceinline__ AnyTile rematerialize(AnyTile tile) {
  make_opaque(tile.address);
  return tile;
}

// s = q k^T: 64 rows of queries from `first` on, the first kColumns columns.
template <class Product, int kColumns, class QTile, class KTile>
__device__ __forceinline__ void issue_qk(typename Product::Sums& s, QTile q, int first, KTile k) {
  wgmma_fence();
  Product::start(s, q.along_rows(0, first), k.along_rows(0));
#pragma unroll
  for (int step = 1; step < kColumns / 16; ++step) Product::add(s, q.along_rows(step, first), k.along_rows(step));
  wgmma_commit();
}

// o += w v
template <class Product, int kSteps, class VTile>
__device__ __forceinline__ void issue_pv(typename Product::Sums& o, unsigned (&probs)[kSteps][4], VTile v) {
  fence_operands(probs);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) Product::add(o, probs[step], v.across_rows(step));
  wgmma_commit();
}

// Scores or weights as the first operands of products, 16 columns each.
template <Element E, int kSteps>
__device__ __forceinline__ void narrow(unsigned (&probs)[kSteps][4], const Accumulator<float> (&s)[2 * kSteps]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto operand = Operands<E>::from_accumulators(&s[2 * step]);
#pragma unroll
    for (int n = 0; n < 4; ++n) probs[step][n] = operand.r[n];
  }
}

}  // namespace cuflash
