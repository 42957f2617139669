// CUDA built-ins with which the host compiler compiles kernel sources and lanes.h runs them. Include it first, with
// this folder before kernels/ in the include path: ptx/ here replaces kernels/ptx.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "tests/cuda/kernel_emulator/lanes.h"

#define __CUDACC__ 1
#define __host__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __noinline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) static_cast<void>(condition)

struct ThreadNumber {
  unsigned x = 0;
};
inline ThreadNumber threadIdx;
struct CtaNumbers {
  unsigned x = 0, y = 0, z = 0;
};
inline CtaNumbers blockIdx, gridDim;
// Aligned as on a GPU, which traps on a vector at another address. So does the compiler's check (CMakeLists.txt).
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline int min(int a, int b) { return a < b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline float fabs(float x) { return std::fabs(x); }
inline float fabsf(float x) { return std::fabs(x); }
inline float copysignf(float x, float sign) { return std::copysign(x, sign); }
inline float fminf(float a, float b) { return std::fmin(a, b); }

template <class To, class From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }

[[noreturn]] inline void __trap() { throw std::runtime_error("a kernel has trapped"); }
inline void __syncthreads() { kernel_emulator::sync_threads(); }
inline int __syncthreads_or(int value) {
  return kernel_emulator::sync_named_any(0, kernel_emulator::num_threads(), value != 0);
}
inline void __threadfence() {}

template <class T>
T of_lane(const unsigned char* all, int lane) {
  T value;
  std::memcpy(&value, all + static_cast<size_t>(lane) * sizeof(T), sizeof(T));
  return value;
}
inline int lane_number() { return static_cast<int>(threadIdx.x) % kernel_emulator::kWarp; }

inline void __syncwarp() { kernel_emulator::exchange("", 1); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  const unsigned char* all = kernel_emulator::exchange(&value, sizeof value);
  return of_lane<T>(all, lane_number() ^ distance);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return of_lane<T>(kernel_emulator::exchange(&value, sizeof value), lane % kernel_emulator::kWarp);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const unsigned char* all = kernel_emulator::exchange(&value, sizeof value);
  return of_lane<T>(all, lane_number() < distance ? lane_number() : lane_number() - distance);
}
inline int __any_sync(unsigned, bool value) {
  const unsigned char* all = kernel_emulator::exchange(&value, sizeof value);
  bool any = false;
  for (int lane = 0; lane < kernel_emulator::kWarp; ++lane) any = any || of_lane<bool>(all, lane);
  return any;
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const unsigned char* all = kernel_emulator::exchange(&value, sizeof value);
  unsigned bits = 0;
  for (int lane = 0; lane < kernel_emulator::kWarp; ++lane) bits |= unsigned{of_lane<bool>(all, lane)} << lane;
  return bits;
}
// Byte n of the result is byte `selector` / 16^n % 8 of a and b, one after the other.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = (static_cast<unsigned long long>(b) << 32) | a;
  unsigned result = 0;
  for (int n = 0; n < 4; ++n) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * n & 7) & 0xff) << 8 * n;
  return result;
}
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(unsigned x) { return x == 0 ? 32 : __builtin_clz(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, int bits) {
  const unsigned long long both = (static_cast<unsigned long long>(high) << 32) | low;
  return static_cast<unsigned>(both >> (bits & 31));
}
template <class T>
T __ldcs(const T* from) {
  return *from;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int n = 0; n < 32; n += 8) c += (a >> n & 0xff) * (b >> n & 0xff);
  return c;
}
inline unsigned __popc(unsigned x) { return static_cast<unsigned>(__builtin_popcount(x)); }
inline unsigned atomicOr(unsigned* to, unsigned value) {
  const unsigned before = *to;
  *to |= value;
  return before;
}
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
