// Element types: what is stored, what computes, and single elements of any stored type.
#pragma once

#include "params.h"
#include "ptx/math.h"

namespace cuflash {

template <Element E>
struct ElementTypes {  // f16, bf16: the bits
  using Stored = unsigned short;
  using Real = float;
};
template <>
struct ElementTypes<Element::f32> {
  using Stored = float;
  using Real = float;
};
template <>
struct ElementTypes<Element::f64> {
  using Stored = double;
  using Real = double;
};
template <Element E>
using StoredOf = typename ElementTypes<E>::Stored;
template <Element E>
using RealOf = typename ElementTypes<E>::Real;  // sums, softmax state, LSE

// Two neighbours, as they lie in memory. 16-bit types only.
template <Element E>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return E == Element::bf16 ? pack_bf16(low, high) : pack_f16(low, high);
}

template <Element E>
__device__ __forceinline__ StoredOf<E> narrow(RealOf<E> value) {
  if constexpr (size_of(E) == 2) return static_cast<unsigned short>(pack<E>(value, 0.0f));
  else return value;
}

// Element `index` of an array of a type known only now.
template <class Real>
__device__ __forceinline__ Real load_element(const void* data, int element, int64 index) {
  switch (static_cast<Element>(element)) {
    case Element::f64: return static_cast<Real>(static_cast<const double*>(data)[index]);
    case Element::f32: return static_cast<Real>(static_cast<const float*>(data)[index]);
    case Element::f16: return static_cast<Real>(widen_f16(static_cast<const unsigned short*>(data)[index]));
    default: return static_cast<Real>(widen_bf16(static_cast<const unsigned short*>(data)[index]));
  }
}
template <class Real>
__device__ __forceinline__ void store_element(void* data, int element, int64 index, Real value) {
  switch (static_cast<Element>(element)) {
    case Element::f64: static_cast<double*>(data)[index] = static_cast<double>(value); break;
    case Element::f32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case Element::f16:
      static_cast<unsigned short*>(data)[index] = narrow<Element::f16>(static_cast<float>(value));
      break;
    default: static_cast<unsigned short*>(data)[index] = narrow<Element::bf16>(static_cast<float>(value));
  }
}

__device__ __forceinline__ int64 offset_of(const RowsView& rows, int64 b, int64 h, int64 row) {
  return b * rows.batch_stride + h * rows.head_stride + row * rows.row_stride;
}
__device__ __forceinline__ int64 offset_of(const HeadView& values, int64 b, int64 h) {
  return b * values.batch_stride + h * values.head_stride;
}

}  // namespace cuflash
