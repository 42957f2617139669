// The wgmma loops of attention, shared by forward, backward and the KV cache kernel: the first operand in shared memory
// (S = Q K^T, dQ = dS K) or in registers (O += P V). They only issue and commit; the caller waits with wgmma.wait_group and
// fences the accumulators.
#pragma once

#include "ptx/compiler.h"
#include "sm90/fence_operands.h"
#include "tile/swizzled.h"

namespace cuflash {

// A tile whose matrix descriptors are recomputed where they are used, instead of all of them staying in registers.
template <class AnyTile>
__device__ __forceinline__ AnyTile rematerialize(AnyTile tile) {
  make_opaque(tile.address);
  return tile;
}

// s = a b^T or, with kAcross, s = a b, both in shared memory: 64 rows of a from `first` on, reduced over kColumns columns
// of a.
template <class Product, int kColumns, bool kAcross = false, class ATile, class BTile>
__device__ __forceinline__ void issue_wgmma_ss(typename Product::Sums& s, ATile a, int first, BTile b) {
  wgmma_fence();
  Product::start(s, a.along_rows(0, first), kAcross ? b.across_rows(0) : b.along_rows(0));
#pragma unroll
  for (int step = 1; step < kColumns / 16; ++step)
    Product::add(s, a.along_rows(step, first), kAcross ? b.across_rows(step) : b.along_rows(step));
  wgmma_commit();
}

// s += a b, both in shared memory; otherwise as above.
template <class Product, int kColumns, class ATile, class BTile>
__device__ __forceinline__ void issue_wgmma_ss_add(typename Product::Sums& s, ATile a, BTile b) {
  fence_operands(s);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) Product::add(s, a.along_rows(step, 0), b.across_rows(step));
  wgmma_commit();
}

// c += a b, with a in registers and b in shared memory.
template <class Product, int kSteps, class BTile>
__device__ __forceinline__ void issue_wgmma_rs(typename Product::Sums& c, unsigned (&a)[kSteps][4], BTile b) {
  fence_operands(a);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) Product::add(c, a[step], b.across_rows(step));
  wgmma_commit();
}

// Converts accumulators to A operands, 16 columns each.
template <Element E, int kSteps>
__device__ __forceinline__ void narrow(unsigned (&probs)[kSteps][4], const Accumulator<float> (&s)[2 * kSteps]) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto operand = Operands<E>::from_accumulators(&s[2 * step]);
#pragma unroll
    for (int n = 0; n < 4; ++n) probs[step][n] = operand.r[n];
  }
}

template <int kSteps>
__device__ __forceinline__ void copy(unsigned (&to)[kSteps][4], const unsigned (&from)[kSteps][4]) {
#pragma unroll
  for (int n = 0; n < 4 * kSteps; ++n) to[n / 4][n % 4] = from[n / 4][n % 4];
}

}  // namespace cuflash
