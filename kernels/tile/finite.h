// Finds and zeroes 16-bit elements that are not finite (exponent all ones); kernels sanitise tiles in shared memory
// with it.
#pragma once

#include "config.h"

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
// The same for a scan of many elements: the OR of such words has a bit of kNotFiniteBits if any element is not finite. An
// exponent of ones carries into the sign, which is masked out before.
constexpr unsigned kNotFiniteBits = 0x80008000u;
template <Element E>
__device__ __forceinline__ unsigned not_finite_word(uint4 x) {
  constexpr unsigned kOnes = kExponentOfOnes<E> * 0x10001u, kLast = (0x8000u - kExponentOfOnes<E>)*0x10001u;
  return ((x.x & kOnes) + kLast) | ((x.y & kOnes) + kLast) | ((x.z & kOnes) + kLast) | ((x.w & kOnes) + kLast);
}
template <Element E>
__device__ __forceinline__ uint4 finite_eight(uint4 x) {
  return {finite_pair<E>(x.x), finite_pair<E>(x.y), finite_pair<E>(x.z), finite_pair<E>(x.w)};
}

}  // namespace cuflash
