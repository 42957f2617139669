// Host version of kernels/ptx/math.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace cuflash {

inline float exp2_of(float x) { return std::exp2(x); }
inline double exp2_of(double x) { return std::exp2(x); }
inline float log2_of(float x) { return std::log2(x); }
inline double log2_of(double x) { return std::log2(x); }
inline float tanh_of(float x) { return std::tanh(x); }
inline double tanh_of(double x) { return std::tanh(x); }
inline float reciprocal_of(float x) { return 1 / x; }
inline float larger(float a, float b) { return std::fmax(a, b); }
inline double larger(double a, double b) { return std::fmax(a, b); }

inline float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
inline double multiply_add(double a, double b, double c) { return std::fma(a, b, c); }
template <class Real>
[[gnu::noinline]] Real rounded_product(Real a, Real b) {
  return a * b;
}

template <class Real>
inline Real minus_infinity() {
  return -std::numeric_limits<Real>::infinity();
}

inline unsigned bits_of_bf16(float x) {
  const unsigned bits = same_bits<unsigned>(x);
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned bits_of_f16(float x) {
  const unsigned sign = same_bits<unsigned>(x) >> 16 & 0x8000;
  const double size = std::fabs(static_cast<double>(x));
  if (x != x) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00;
  // The number is rounded to nearest even in units of the last place; a carry increments the exponent.
  const int exponent = std::max(size > 0 ? std::ilogb(size) : -14, -14);
  const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return sign | (units + (static_cast<unsigned>(exponent + 14) << 10));
}
inline unsigned pack_bf16(float low, float high) { return bits_of_bf16(low) | bits_of_bf16(high) << 16; }
inline unsigned pack_f16(float low, float high) { return bits_of_f16(low) | bits_of_f16(high) << 16; }
inline float widen_bf16(unsigned short bits) { return same_bits<float>(static_cast<unsigned>(bits) << 16); }
inline float widen_f16(unsigned short bits) {
  const int exponent = bits >> 10 & 31, units = bits & 1023;
  const float size = exponent == 31
                         ? (units ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity())
                     : exponent == 0 ? std::ldexp(static_cast<float>(units), -24)
                                     : std::ldexp(static_cast<float>(units + 1024), exponent - 25);
  return bits & 0x8000 ? -size : size;
}
template <class Widen, class Pack>
unsigned fma_pairs(unsigned a, unsigned b, unsigned c, Widen widen, Pack pack) {
  const auto half = [&](int shift) {
    const auto of = [&](unsigned x) { return widen(static_cast<unsigned short>(x >> shift)); };
    return std::fma(of(a), of(b), of(c));
  };
  return pack(half(0), half(16));
}
inline unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) { return fma_pairs(a, b, c, widen_bf16, pack_bf16); }
inline unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) { return fma_pairs(a, b, c, widen_f16, pack_f16); }

inline unsigned not_zero_mask_bf16(unsigned two) {
  return ((two & 0x7fffu) != 0 ? 0xffffu : 0u) | ((two & 0x7fff0000u) != 0 ? 0xffff0000u : 0u);
}
inline unsigned not_zero_mask_f16(unsigned two) { return not_zero_mask_bf16(two); }
inline unsigned not_less_mask_bf16(unsigned a, unsigned b) {
  const auto less = [&](int shift) {
    return widen_bf16(static_cast<unsigned short>(a >> shift)) < widen_bf16(static_cast<unsigned short>(b >> shift));
  };
  return (less(0) ? 0u : 0xffffu) | (less(16) ? 0u : 0xffff0000u);
}

}  // namespace cuflash
