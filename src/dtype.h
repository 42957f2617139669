// Element types: their size and name, and conversion of rows to and from the compute type.
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

// The type of the softmax state and of LSE: f64 for f64 inputs, f32 for all others.
inline DType state_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

// One element of an array of any type, widened to double. Loops over long rows use load_row instead.
double load_element(const void* data, DType type, int64_t index);

// Converts `count` elements, starting at element `begin`, to or from Compute (float or double). Narrowing rounds once,
// to nearest even.
template <class Compute>
void load_row(const void* data, DType type, int64_t begin, int64_t count, Compute* row);
template <class Compute>
void store_row(void* data, DType type, int64_t begin, int64_t count, const Compute* row);

extern template void load_row(const void*, DType, int64_t, int64_t, float*);
extern template void load_row(const void*, DType, int64_t, int64_t, double*);
extern template void store_row(void*, DType, int64_t, int64_t, const float*);
extern template void store_row(void*, DType, int64_t, int64_t, const double*);

}  // namespace cuflash
