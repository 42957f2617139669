// Sums in global memory and the ordering between CTAs. PTX ISA, "red", "ld.acquire", "red.release".
#pragma once

namespace cuflash {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kAddsFour = true;  // one instruction for four neighbouring floats
#else
constexpr bool kAddsFour = false;
#endif

// Nothing is added where `adds` is false: a predicate, so that the assembler chooses where to branch.
__device__ __forceinline__ void add_to_global(float* to, float x, bool adds) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p red.relaxed.gpu.global.add.f32 [%0], %1; }" ::"l"(to), "f"(x),
               "r"(int{adds}));
}
__device__ __forceinline__ void add_to_global(double* to, double x, bool adds) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p red.relaxed.gpu.global.add.f64 [%0], %1; }" ::"l"(to), "d"(x),
               "r"(int{adds}));
}
// Where kAddsFour.
__device__ __forceinline__ void add_four_to_global(float* to, const float (&x)[4], bool adds) {
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4}; }" ::"l"(to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(int{adds}));
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void add_release(unsigned* to, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

}  // namespace cuflash
