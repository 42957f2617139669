// Programmatic dependent launch: the prologue of a grid overlaps with the previous grid of its stream. PTX ISA,
// "griddepcontrol".
#pragma once

namespace cuflash {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Waits until all prerequisite grids have completed and their writes are visible to this grid.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next grid may start once all CTAs of this one have executed this or exited; it calls griddepcontrol_wait before
// it reads.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else  // grids of older architectures do not overlap
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void griddepcontrol_launch_dependents() {}
#endif

// Suspends the thread for at most twice as many nanoseconds. "nanosleep"
__device__ __forceinline__ void sleep_for(unsigned nanoseconds) {
  asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds) : "memory");
}

}  // namespace cuflash
