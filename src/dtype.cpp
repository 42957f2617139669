#include "dtype.h"

#include "numeric.h"

namespace cuflash {

const char* name_of(DType type) {
  switch (type) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i32: return "i32";
    case DType::boolean: return "bool";
  }
  return "unknown";
}

bool is_float(DType type) {
  return type == DType::f64 || type == DType::f32 || type == DType::f16 || type == DType::bf16;
}

double load_element(const void* data, DType type, int64_t index) {
  double value = 0;
  load_row(data, type, index, 1, &value);
  return value;
}

template <class Compute>
void load_row(const void* data, DType type, int64_t begin, int64_t count, Compute* row) {
  const auto widen = [&]<class Stored>(const Stored* from, auto convert) {
    for (int64_t n = 0; n < count; ++n) row[n] = static_cast<Compute>(convert(from[begin + n]));
  };
  switch (type) {
    case DType::f64: return widen(static_cast<const double*>(data), [](double x) { return x; });
    case DType::f32: return widen(static_cast<const float*>(data), [](float x) { return x; });
    case DType::f16: return widen(static_cast<const uint16_t*>(data), f16_to_float);
    case DType::bf16: return widen(static_cast<const uint16_t*>(data), bf16_to_float);
    case DType::i32: return widen(static_cast<const int32_t*>(data), [](int32_t x) { return x; });
    case DType::boolean: return widen(static_cast<const uint8_t*>(data), [](uint8_t x) { return x != 0; });
  }
}

// Narrowing a double to a 16-bit type through float would round twice. Rounding to odd first makes the second rounding
// the only one that matters.
static float round_to_odd(double value) {
  const uint64_t double_bits = std::bit_cast<uint64_t>(value), exponent = double_bits >> 52 & 0x7ff;
  if (exponent > 1023 - 127 &&
      exponent < 1023 + 128) {  // normal floats: keep the first bits, and whether any other is set
    const uint32_t sign = static_cast<uint32_t>(double_bits >> 32) & 0x80000000u;
    const uint32_t first = static_cast<uint32_t>((double_bits & ~0ull >> 1) >> 29) - ((1023u - 127u) << 23);
    return std::bit_cast<float>(sign | first | static_cast<uint32_t>((double_bits & 0x1fffffffu) != 0));
  }
  const float nearest = static_cast<float>(value);
  const double error = value - static_cast<double>(nearest);
  if (error == 0 || !(error == error)) return nearest;  // exact, Inf or NaN
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (bits & 1u) return nearest;
  if (nearest == 0) return error > 0 ? 0x1p-149f : -0x1p-149f;
  const bool away_from_zero = (error > 0) == (nearest > 0);
  return std::bit_cast<float>(away_from_zero ? bits + 1 : bits - 1);
}
static float narrow(double value) { return round_to_odd(value); }
static float narrow(float value) { return value; }

template <class Compute>
void store_row(void* data, DType type, int64_t begin, int64_t count, const Compute* row) {
  const auto convert = [&]<class Stored>(Stored* to, auto rounded) {
    for (int64_t n = 0; n < count; ++n) to[begin + n] = rounded(row[n]);
  };
  switch (type) {
    case DType::f64: return convert(static_cast<double*>(data), [](Compute x) { return static_cast<double>(x); });
    case DType::f32: return convert(static_cast<float*>(data), [](Compute x) { return static_cast<float>(x); });
    case DType::f16: return convert(static_cast<uint16_t*>(data), [](Compute x) { return float_to_f16(narrow(x)); });
    case DType::bf16: return convert(static_cast<uint16_t*>(data), [](Compute x) { return float_to_bf16(narrow(x)); });
    case DType::i32:
    case DType::boolean: return;  // no output of the library has these types
  }
}

template void load_row(const void*, DType, int64_t, int64_t, float*);
template void load_row(const void*, DType, int64_t, int64_t, double*);
template void store_row(void*, DType, int64_t, int64_t, const float*);
template void store_row(void*, DType, int64_t, int64_t, const double*);

}  // namespace cuflash
