// exp over vectors, for x <= 0 in all that matters. Exactly 0 for -inf and below the smallest normal number, NaN for NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "cpu/gemm.h"

namespace cuflash::cpu {

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; the Taylor polynomial of degree 7 leaves 5e-9 there. Largest
// relative error 7.6e-8, less than an ulp. Above 88.3 it is Inf.
inline Simd<float>::Vec exp_vector(Simd<float>::Vec x) {
  using Vec = Simd<float>::Vec;
  typedef int32_t Int __attribute__((vector_size(16), may_alias));
  constexpr float kRound = 0x1.8p23f;  // adding it leaves round(x) in the low bits
  constexpr float kSmallest = -87.33f, kLargest = 88.7f;
  const Vec bounded = x > kLargest ? Vec{} + kLargest : x;
  const Vec shifted = bounded * 0x1.715476p+0f + kRound;
  const Vec n = shifted - kRound;
  // ln 2 in two parts, the first short enough that n times it is exact.
  const Vec r = (bounded - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  Vec p = Vec{} + 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Int exponent = (std::bit_cast<Int>(shifted) << 23) + (127 << 23);
  const Vec result = p * std::bit_cast<Vec>(exponent);
  return x < kSmallest ? Vec{} : result;
}

inline Simd<double>::Vec exp_vector(Simd<double>::Vec x) { return Simd<double>::Vec{std::exp(x[0]), std::exp(x[1])}; }

}  // namespace cuflash::cpu
