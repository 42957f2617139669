// Element types: the stored type, the type of the computation, and access to single elements of any stored type.
#pragma once

#include "params.h"
#include "ptx/compiler.h"
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

// Two adjacent elements as one word, in memory order. 16-bit types only.
template <Element E>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return E == Element::bf16 ? pack_bf16(low, high) : pack_f16(low, high);
}

template <Element E>
__device__ __forceinline__ StoredOf<E> narrow(RealOf<E> value) {
  if constexpr (size_of(E) == 2) return static_cast<unsigned short>(pack<E>(value, 0.0f));
  else return value;
}

template <Element E>
__device__ __forceinline__ RealOf<E> widen(StoredOf<E> value) {
  if constexpr (E == Element::bf16) return widen_bf16(value);
  else if constexpr (E == Element::f16) return widen_f16(value);
  else return value;
}

// Element `index` of an array of E or f32: tensors other than q, k and v may be either.
template <Element E>
__device__ __forceinline__ RealOf<E> load_element(const void* data, int element, int64 index) {
  if (element == static_cast<int>(E)) return widen<E>(static_cast<const StoredOf<E>*>(data)[index]);
  return static_cast<const float*>(data)[index];
}
template <Element E>
__device__ __forceinline__ void store_element(void* data, int element, int64 index, RealOf<E> value) {
  if (element == static_cast<int>(E)) static_cast<StoredOf<E>*>(data)[index] = narrow<E>(value);
  else static_cast<float*>(data)[index] = static_cast<float>(value);
}

__device__ __forceinline__ int64 offset_of(const RowsView& rows, int64 b, int64 h, int64 row) {
  return b * rows.batch_stride + h * rows.head_stride + row * rows.row_stride;
}
__device__ __forceinline__ int64 offset_of(const HeadView& values, int64 b, int64 h) {
  return b * values.batch_stride + h * values.head_stride;
}

// Row `row` of one head. Opaque, so that the compiler keeps this address instead of the values from which it was
// computed.
template <Element E>
__device__ __forceinline__ const void* row_address(const RowsView& rows, int64 b, int64 h, int64 row) {
  const int size = rows.element == static_cast<int>(E) ? size_of(E) : size_of(Element::f32);
  const void* address = static_cast<const char*>(rows.data) + offset_of(rows, b, h, row) * size;
  make_opaque(address);
  return address;
}

}  // namespace cuflash
