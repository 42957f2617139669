// Eight neighbours of a row of any stored type, in 16-byte pieces where they are aligned.
#pragma once

#include "tile/element.h"

namespace cuflash {

__device__ __forceinline__ bool on_16_bytes(const void* p) { return reinterpret_cast<uint64>(p) % 16 == 0; }

// x[n] = element index + n, 0 from `count` on.
template <class Real>
__device__ __forceinline__ void load_eight(const void* data, int element, int64 index, int count, Real (&x)[8]) {
  const Element e = static_cast<Element>(element);
  const char* at = static_cast<const char*>(data) + index * size_of(e);
  if (count < 8 || !on_16_bytes(at)) {
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = n < count ? load_element<Real>(data, element, index + n) : Real(0);
    return;
  }
  if (e == Element::f64) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const double2 v = reinterpret_cast<const double2*>(at)[n];
      x[2 * n] = static_cast<Real>(v.x), x[2 * n + 1] = static_cast<Real>(v.y);
    }
  } else if (e == Element::f32) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 v = reinterpret_cast<const float4*>(at)[n];
      x[4 * n] = v.x, x[4 * n + 1] = v.y, x[4 * n + 2] = v.z, x[4 * n + 3] = v.w;
    }
  } else {
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const auto bits = static_cast<unsigned short>(words[n / 2] >> (n % 2 * 16));
      x[n] = e == Element::f16 ? widen_f16(bits) : widen_bf16(bits);
    }
  }
}

// Element index + n = x[n] for n < count.
template <class Real>
__device__ __forceinline__ void store_eight(void* data, int element, int64 index, int count, const Real (&x)[8]) {
  const Element e = static_cast<Element>(element);
  char* at = static_cast<char*>(data) + index * size_of(e);
  if (count < 8 || !on_16_bytes(at)) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (n < count) store_element(data, element, index + n, x[n]);
    return;
  }
  float y[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) y[n] = static_cast<float>(x[n]);
  if (e == Element::f64) {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      reinterpret_cast<double2*>(at)[n] = {static_cast<double>(x[2 * n]), static_cast<double>(x[2 * n + 1])};
  } else if (e == Element::f32) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
      reinterpret_cast<float4*>(at)[n] = {y[4 * n], y[4 * n + 1], y[4 * n + 2], y[4 * n + 3]};
  } else if (e == Element::f16) {
    *reinterpret_cast<uint4*>(at) = {pack_f16(y[0], y[1]), pack_f16(y[2], y[3]), pack_f16(y[4], y[5]),
                                     pack_f16(y[6], y[7])};
  } else {
    *reinterpret_cast<uint4*>(at) = {pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]),
                                     pack_bf16(y[6], y[7])};
  }
}

}  // namespace cuflash
