// What a warpgroup (four warps, the first of them a multiple of four) does together: its share of the registers, and the
// order of its asynchronous products. PTX ISA, "setmaxnreg", "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once

namespace cuflash {

// Waits until the registers are there. Multiples of 8, from 24 to 256. "setmaxnreg"
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Before products that use registers which other instructions have written. "wgmma.fence"
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// What was issued since the last commit is one group. "wgmma.commit_group"
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kPending of the committed groups are still under way. "wgmma.wait_group"
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// All lanes are here. The assembler believes it of an instruction that only whole warpgroups may execute; a loop without
// one is a loop that lanes may leave one by one, and then counters and descriptors are kept in every lane's registers and
// moved to uniform ones before each product.
__device__ __forceinline__ void converge() { wgmma_fence(); }

// The compiler does not know that products write later than where they stand: values that pass through here are neither
// read before nor changed behind it.
__device__ __forceinline__ void fence_operand(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void fence_operand(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }

// The same in all lanes of the warp, and the compiler knows.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

}  // namespace cuflash
