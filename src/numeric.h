// 16-bit floating point on the host: exact widening, and narrowing that rounds to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace cuflash {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);  // NaN stays NaN, quieted
  const uint32_t ties_to_even = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>((bits + ties_to_even) >> 16);  // the carry may round up to Inf
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);  // Inf, NaN
  // f32 has the same exponent field 13 bits higher. Multiplying by 2^112 corrects the bias, and also converts a
  // denormal pattern into the right normal number.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

inline uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));  // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to Inf
  if (magnitude < 0x38800000u) {                                               // below 2^-14: denormal, or zero
    // Adding 2^-1 aligns the 2^-24 grid of f16 denormals with the last bit of f32, so the addition itself rounds to
    // even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t ties_to_even = 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((magnitude + ties_to_even - 0x38000000u) >> 13));
}

}  // namespace cuflash
