// Element types: size, name, and a row of any of them read or written as the type that computes.
#pragma once

#include <cuflash/flash_attention.h>

#include <cstdint>

namespace cuflash {

int64_t size_of(DType type);
const char* name_of(DType type);  // "bf16"
bool is_known(DType type);
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
