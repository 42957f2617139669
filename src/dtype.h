// Element types: size, name, and a row of any of them read or written as the type that computes.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>

namespace cuflash {

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::boolean: return 1;
  }
  return 0;
}
const char* name_of(DType type);  // "bf16"
constexpr bool is_known(DType type) { return size_of(type) != 0; }
bool is_float(DType type);

// The type softmax state and LSE are kept in: f64 for f64, f32 for the rest.
inline DType state_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

// Element index of an array of any type, widened. Sums and long rows use load_row.
double load_element(const void* data, DType type, int64_t index);

// count elements from element `begin` on, converted to or from Compute (float or double). Narrowing rounds once, to even.
template <class Compute>
void load_row(const void* data, DType type, int64_t begin, int64_t count, Compute* row);
template <class Compute>
void store_row(void* data, DType type, int64_t begin, int64_t count, const Compute* row);

extern template void load_row(const void*, DType, int64_t, int64_t, float*);
extern template void load_row(const void*, DType, int64_t, int64_t, double*);
extern template void store_row(void*, DType, int64_t, int64_t, const float*);
extern template void store_row(void*, DType, int64_t, int64_t, const double*);

}  // namespace cuflash
