// Finds and zeroes 16-bit elements that are not finite (exponent all ones); kernels sanitise tiles in shared memory
// with it.
#pragma once

#include "config.h"
#include "ptx/math.h"

namespace cuflash {

template <Element E>
constexpr unsigned kExponentOfOnes = E == Element::bf16 ? 0x7f80u : 0x7c00u;

// Two elements; non-finite ones are replaced by 0.
template <Element E>
__device__ __forceinline__ unsigned finite_pair(unsigned pair) {
  constexpr unsigned kOnes = kExponentOfOnes<E>;
  const unsigned low = (pair & kOnes) == kOnes ? 0u : pair & 0xffffu;
  return low | ((pair >> 16 & kOnes) == kOnes ? 0u : pair & 0xffff0000u);
}

// Whether any of eight elements is not finite.
template <Element E>
__device__ __forceinline__ bool has_not_finite(uint4 x) {
  constexpr unsigned kOnes = kExponentOfOnes<E>;
  bool found = false;
  for (const unsigned word : {x.x, x.y, x.z, x.w}) found |= (word & kOnes) == kOnes || (word >> 16 & kOnes) == kOnes;
  return found;
}
// Scans many elements for non-finite ones: the sum of 0 times each of them is NaN, whose bits are not 0, if one is not
// finite. `sums` holds pairs of elements that start at 0.
template <Element E>
__device__ __forceinline__ void add_zero_times(unsigned (&sums)[4], uint4 x) {
  const unsigned word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int n = 0; n < 4; ++n)
    sums[n] = E == Element::bf16 ? fma_bf16x2(word[n], 0, sums[n]) : fma_f16x2(word[n], 0, sums[n]);
}
__device__ __forceinline__ bool any_not_finite(const unsigned (&sums)[4]) {
  return ((sums[0] | sums[1] | sums[2] | sums[3]) & 0x7fff7fffu) != 0;
}
template <Element E>
__device__ __forceinline__ uint4 finite_eight(uint4 x) {
  return {finite_pair<E>(x.x), finite_pair<E>(x.y), finite_pair<E>(x.z), finite_pair<E>(x.w)};
}

}  // namespace cuflash
