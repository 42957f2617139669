// Softcap: s = softcap * tanh(scale * dot / softcap), from a stored argument of tanh.
//
// f16 and bf16 have a fast tanh with an absolute error below 5e-7, and 6.5e-7 relative to tanh within the range of its
// polynomial (tests/cuda/kernels/cuda_softcap_test). Scores of most models stay in that range, where tanh takes only
// FMA instructions; two more instructions of the exponential unit per score would take longer than the products. The
// choice between polynomial and exponential is made for each element, so that a score is a function of its dot product
// alone. A warp may vote to skip the exponentials if every element of its tile is in the polynomial's range; this does
// not change a bit.
//
// f32 and f64 take the exact tanh of the math library.
//
// A softmax with a fixed reference (kFixedMax: bf16, caps up to 50) takes exponents of 2 straight from dot products.
// Below three eighths of the cap they are a polynomial of three odd powers: four FMA instructions, the softmax's addend
// included. Beyond, they take an exponential and a reciprocal. The error is below 4.5e-6 of the score in the
// polynomial's range and below 5e-7 of the cap beyond, less than 1e-4 of any score. Again the choice is made for each
// element, and a tile without elements beyond the range gets the same bits from the polynomial alone. Backward in bf16
// takes the same exponents, and the derivative by a polynomial in the same square: five FMA instructions and one
// product for both.
#pragma once

#include "cap_polynomial.h"
#include "tile/element.h"

namespace cuflash {

template <Element E>
constexpr bool kFastTanh = size_of(E) == 2;

// The fast tanh takes its argument multiplied by kTanhArgument, 4. Its polynomial serves magnitudes below 2, that is,
// floats whose bit 30 is not set, so the OR of several arguments tells whether all are in range. Infinities and NaN
// have the bit.
constexpr unsigned kBeyondTanhRange = 1u << 30;

__device__ __forceinline__ float tanh_in_range(float x) {
  const float square = x * x;
  float q = -2.71009685e-06f;
  q = multiply_add(q, square, 1.28811487e-04f);
  q = multiply_add(q, square, -5.20723732e-03f);
  q = multiply_add(q, square, 2.49999866e-01f);
  return x * q;
}
// tanh(u) = 1 - 2 / (1 + exp(2 u)) of the magnitude: an exponential near 0 would lose the digits of 1 - tanh^2. One of
// infinity yields 1.
__device__ __forceinline__ float tanh_beyond_range(float x) {
  const float e = exp2_of(fabs(x) * static_cast<float>(2 * kLog2e / kTanhArgument));
  return copysignf(multiply_add(-2.0f, reciprocal_of(1.0f + e), 1.0f), x);
}
__device__ __forceinline__ float tanh_of_argument(float x) {
  const float inside = tanh_in_range(x), beyond = tanh_beyond_range(x);
  return fabs(x) < 2.0f ? inside : beyond;
}

// The exponent of a dot product in range, and its addend.
__device__ __forceinline__ float cap_exponent_in_range(float x, const CapPolynomial& cap, float shift) {
  const float square = x * x;
  const float q = multiply_add(cap.coefficient[2], square, cap.coefficient[1]);
  return multiply_add(x, multiply_add(q, square, cap.coefficient[0]), shift);
}
// The exponent for any dot product x. top: the exponent of the cap, and its addend. 1 - tanh(u) = 2 / (1 + exp(2 u)).
__device__ __forceinline__ float cap_exponent(float x, const CapPolynomial& cap, float top, float shift) {
  const float inside = cap_exponent_in_range(x, cap, shift);
  const float beyond = multiply_add(reciprocal_of(1.0f + exp2_of(x * cap.twice_log2)), cap.drop, top);
  return fabs(x) < cap.limit ? inside : beyond;
}

// The exponent of a dot product and the derivative of softcap, 1 - tanh^2. The error of the derivative is below 3e-5 in
// range; beyond, it is 4 r (1 - r) with r = 1 / (1 + exp(2 u)).
struct CapGradient {
  float exponent, slope;
};
__device__ __forceinline__ CapGradient cap_gradient_in_range(float x, const CapDerivative& cap, float shift) {
  const float square = x * x;
  return {cap_exponent_in_range(x, cap.exponent, shift),
          multiply_add(multiply_add(cap.slope[2], square, cap.slope[1]), square, cap.slope[0])};
}
__device__ __forceinline__ CapGradient cap_gradient(float x, const CapDerivative& cap, float shift) {
  const CapGradient inside = cap_gradient_in_range(x, cap, shift);
  const float r = reciprocal_of(1.0f + exp2_of(x * cap.exponent.twice_log2)), four = 4.0f * r;
  const bool in_range = fabs(x) < cap.exponent.limit;
  return {cap_exponent(x, cap.exponent, cap.top + shift, shift),
          in_range ? inside.slope : multiply_add(-four, r, four)};
}

// The argument of softcap_tanh. folded: AttentionParams::tanh_argument.
template <Element E>
__device__ __forceinline__ RealOf<E> softcap_argument(RealOf<E> dot, RealOf<E> scale, RealOf<E> softcap, float folded) {
  if constexpr (!kFastTanh<E>) return dot * scale / softcap;
  else return folded != 0 ? dot * folded : dot * scale / softcap * static_cast<float>(kTanhArgument);
}
template <Element E>
__device__ __forceinline__ RealOf<E> softcap_tanh(RealOf<E> argument) {
  if constexpr (kFastTanh<E>) return tanh_of_argument(argument);
  else return tanh_of(argument);
}

}  // namespace cuflash
