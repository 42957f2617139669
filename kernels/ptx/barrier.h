// Barriers of a part of a CTA. PTX ISA, "bar.sync"; barrier 0 is that of __syncthreads.
#pragma once

namespace cuflash {

// Until kThreads threads, whole warps, have come to this barrier.
template <int kThreads>
__device__ __forceinline__ void wait_at_barrier(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace cuflash
