// Vector accesses of epilogues and element-wise loads: eight adjacent elements of a row of E or f32 (stores also four),
// in 16-byte accesses if they are aligned.
#pragma once

#include "tile/element.h"

namespace cuflash {

__device__ __forceinline__ bool on_16_bytes(const void* p) { return reinterpret_cast<uint64>(p) % 16 == 0; }

// Bytes of one access.
constexpr int access_bytes(int bytes) { return bytes < 16 ? bytes : 16; }

// kCount stored elements, aligned for the widest access.
template <Element E, int kCount>
struct alignas(access_bytes(kCount* size_of(E))) Stored {
  StoredOf<E> x[kCount];
};
template <Element E>
using EightStored = Stored<E, 8>;

// kCount values in the type of the computation, aligned for the widest access.
template <class Real, int kCount>
struct alignas(access_bytes(kCount* static_cast<int>(sizeof(Real)))) Reals {
  Real x[kCount];
};
template <class Real>
using EightReals = Reals<Real, 8>;

template <Element E, Element kStored>
__device__ __forceinline__ void load_eight_of(const void* data, int64 index, int count, RealOf<E> (&x)[8]) {
  const auto* from = static_cast<const StoredOf<kStored>*>(data) + index;
  EightStored<kStored> eight{};
  if (count == 8 && on_16_bytes(from)) {
    eight = *reinterpret_cast<const EightStored<kStored>*>(from);
  } else {
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (n < count) eight.x[n] = from[n];
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) x[n] = widen<kStored>(eight.x[n]);
}

// load_eight_of for rows whose pieces of eight are all complete and 16-byte aligned.
template <Element E>
__device__ __forceinline__ void load_whole_eight(const void* data, int64 index, RealOf<E> (&x)[8]) {
  const auto eight = *reinterpret_cast<const EightStored<E>*>(static_cast<const StoredOf<E>*>(data) + index);
#pragma unroll
  for (int n = 0; n < 8; ++n) x[n] = widen<E>(eight.x[n]);
}

// x[n] = element index + n, 0 from `count` on.
template <Element E>
__device__ __forceinline__ void load_eight(const void* data, int element, int64 index, int count, RealOf<E> (&x)[8]) {
  if (element == static_cast<int>(E)) load_eight_of<E, E>(data, index, count, x);
  else load_eight_of<E, Element::f32>(data, index, count, x);
}

template <Element E, Element kStored, int kCount>
__device__ __forceinline__ void store_of(void* data, int64 index, int count, const RealOf<E> (&x)[kCount]) {
  auto* to = static_cast<StoredOf<kStored>*>(data) + index;
  Stored<kStored, kCount> all;
#pragma unroll
  for (int n = 0; n < kCount; ++n) all.x[n] = narrow<kStored>(static_cast<RealOf<kStored>>(x[n]));
  if (count == kCount && reinterpret_cast<uint64>(to) % alignof(Stored<kStored, kCount>) == 0) {
    *reinterpret_cast<Stored<kStored, kCount>*>(to) = all;
  } else {
#pragma unroll
    for (int n = 0; n < kCount; ++n)
      if (n < count) to[n] = all.x[n];
  }
}

// store_of for rows whose pieces of kCount elements are all complete and aligned to their size.
template <Element E, int kCount>
__device__ __forceinline__ void store_whole(void* data, int64 index, const RealOf<E> (&x)[kCount]) {
  Stored<E, kCount> all;
#pragma unroll
  for (int n = 0; n < kCount; ++n) all.x[n] = narrow<E>(x[n]);
  *reinterpret_cast<Stored<E, kCount>*>(static_cast<StoredOf<E>*>(data) + index) = all;
}

// Stores x[n] to element index + n for n < count; four or eight elements.
template <Element E, int kCount>
__device__ __forceinline__ void store(void* data, int element, int64 index, int count, const RealOf<E> (&x)[kCount]) {
  if (element == static_cast<int>(E)) store_of<E, E>(data, index, count, x);
  else store_of<E, Element::f32>(data, index, count, x);
}

}  // namespace cuflash
