// Special registers of a CTA. PTX ISA, "Special Registers: %tid, %ctaid, %nctaid".
//
// The reads are volatile, so that a kernel reads an index again after its mainloop instead of keeping it in a register.
#pragma once

namespace cuflash {

// threadIdx.x, read again, so that values computed from it do not stay in registers across steps.
__device__ __forceinline__ int new_thread_id() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  __builtin_assume(thread >= 0 && thread < 1024);  // turns divisions into shifts
  return thread;
}

// CTA index and number of CTAs of a one-dimensional grid.
__device__ __forceinline__ void read_cta_index(unsigned& cta, unsigned& ctas) {
  asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%nctaid.x;" : "=r"(cta), "=r"(ctas));
}

// Linear CTA index of a two-dimensional grid.
__device__ __forceinline__ long long cta_number() {
  unsigned x, y, width;
  asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%ctaid.y; mov.u32 %2, %%nctaid.x;" : "=r"(x), "=r"(y), "=r"(width));
  return x + static_cast<long long>(width) * y;
}

// CTAs of a two-dimensional grid.
__device__ __forceinline__ long long num_ctas() {
  unsigned width, height;
  asm volatile("mov.u32 %0, %%nctaid.x; mov.u32 %1, %%nctaid.y;" : "=r"(width), "=r"(height));
  return static_cast<long long>(width) * height;
}

}  // namespace cuflash
