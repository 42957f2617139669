// Math of the softmax (ex2.approx, log2, tanh, max) and 16-bit conversions (cvt).
#pragma once

namespace cuflash {

// Error up to 2 ulp; results below 2^-126 are flushed to 0, which does not affect any sum of this library.
__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double exp2_of(double x) { return exp2(x); }
__device__ __forceinline__ float log2_of(float x) { return log2f(x); }
__device__ __forceinline__ double log2_of(double x) { return log2(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
// Error up to 1 ulp; the reciprocal of a number above 2^126 is flushed to 0.
__device__ __forceinline__ float reciprocal_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }  // a NaN loses
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

// a * b + c, rounded once.
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
// A product that the compiler does not contract into an FMA with a following addition.
__device__ __forceinline__ float rounded_product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double rounded_product(double a, double b) { return __dmul_rn(a, b); }

template <class Real>
__device__ __forceinline__ Real minus_infinity() {
  return -static_cast<Real>(__int_as_float(0x7f800000));
}

// Two floats as one word of 16-bit elements, rounded to nearest even; `low` is at the lower address.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
// Sets all bits of each half that is not 0. sm_90 and later.
__device__ __forceinline__ unsigned not_zero_mask_bf16(unsigned two) {
  unsigned mask;
  asm("set.neu.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(two), "r"(0));
  return mask;
}
__device__ __forceinline__ unsigned not_zero_mask_f16(unsigned two) {
  unsigned mask;
  asm("set.neu.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(two), "r"(0));
  return mask;
}
// Sets all bits of each half of the result where a is not less than b, which includes NaN.
__device__ __forceinline__ unsigned not_less_mask_bf16(unsigned a, unsigned b) {
  unsigned mask;
  asm("set.geu.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
  return mask;
}
// a * b + c of two pairs of elements.
__device__ __forceinline__ unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ float widen_bf16(unsigned short bits) {
  return __int_as_float(static_cast<int>(static_cast<unsigned>(bits) << 16));
}
__device__ __forceinline__ float widen_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

}  // namespace cuflash
