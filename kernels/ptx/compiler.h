// Empty asm statements that limit what the compiler may assume; they emit no instruction.
#pragma once

namespace cuflash {

// The compiler neither keeps values of memory in registers across this point nor moves accesses across it.
__device__ __forceinline__ void compiler_fence() { asm volatile("" ::: "memory"); }

// The compiler treats x as a new value from here on, so it recomputes values that depend on x instead of keeping them
// in registers.
__device__ __forceinline__ void make_opaque(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void make_opaque(const void*& x) { asm volatile("" : "+l"(x)); }

}  // namespace cuflash
