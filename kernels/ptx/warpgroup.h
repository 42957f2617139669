// Instructions that a warpgroup (four warps, the first a multiple of four) executes as a whole: setmaxnreg, and the
// fences and waits around wgmma. PTX ISA, "setmaxnreg", "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

namespace cuflash {

// Blocks until the registers are available. Multiples of 8, from 24 to 256. "setmaxnreg"
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Needed before a wgmma that uses registers which other instructions have written. "wgmma.fence"
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Products issued since the last commit form one group. "wgmma.commit_group"
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kPending committed groups are in flight. "wgmma.wait_group"
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells ptxas that all lanes are converged, by an instruction that only whole warpgroups may execute. Without one,
// lanes could leave a loop one by one, and ptxas would keep counters and descriptors in per-lane registers and move
// them to uniform registers before each product.
__device__ __forceinline__ void converge() { wgmma_fence(); }

// The compiler does not know that wgmma writes its registers asynchronously. A value that passes through here is not
// read before this point, nor modified after it.
__device__ __forceinline__ void fence_operand(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void fence_operand(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }

// A value that is equal in all lanes of the warp, in a form that the compiler knows to be uniform.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

}  // namespace cuflash
