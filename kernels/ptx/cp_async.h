// cp.async loads of the portable kernels, and predicated reads of shared memory. PTX ISA, "Data Movement and Conversion
// Instructions: cp.async".
#pragma once

namespace cuflash {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Two adjacent floats, 8-byte aligned. Volatile: keeps its position among products and barriers.
__device__ __forceinline__ void load_pair_from_shared(unsigned address, float& first, float& second) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}

// Adjacent floats, 8- or 16-byte aligned; no load if `loads` is false, which is a predicate as in ptx/flagged_pair.h.
__device__ __forceinline__ void load_from_shared(unsigned address, float (&x)[2], bool loads) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.shared.v2.f32 {%0, %1}, [%2]; }"
               : "+f"(x[0]), "+f"(x[1])
               : "r"(address), "r"(int{loads})
               : "memory");
}
__device__ __forceinline__ void load_from_shared(unsigned address, float (&x)[4], bool loads) {
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4]; }"
               : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
               : "r"(address), "r"(int{loads})
               : "memory");
}

// Copies 16 bytes: `bytes` of them are read, the rest is zero-filled. Both addresses are 16-byte aligned.
__device__ __forceinline__ void cp_async_16(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cuflash
