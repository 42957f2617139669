// Copies that arrive on a barrier: boxes of a tensor that a TensorMap describes. PTX ISA, "Data Movement and Conversion
// Instructions: cp.async.bulk.tensor, prefetch.tensormap".
#pragma once

#include "params.h"

namespace cuflash {

// How long the L2 cache keeps what is copied.
using EvictionPolicy = unsigned long long;
__device__ __forceinline__ EvictionPolicy evict_normal() {
  EvictionPolicy policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Nobody reads it again soon: it makes room first, before all that is in L2 already.
__device__ __forceinline__ EvictionPolicy evict_first() {
  EvictionPolicy policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// All but one line of 16 make room by their age. What kernels before have left in L2 to be written to memory would stay there
// otherwise, and go out piece by piece between reads, which slows down all of a long call. A short one is better off if it
// stays. The fraction was measured: docs/log.md.
__device__ __forceinline__ EvictionPolicy evict_first_sixteenth() {
  EvictionPolicy policy;
  asm("createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %0, 0.0625;" : "=l"(policy));
  return policy;
}

// The box at (column, row, head, batch); what lies outside of the tensor becomes zero. Arrives on the barrier with all
// bytes of the box. `to` on a multiple of 128 bytes.
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, unsigned barrier, int column, int row,
                                         int head, int batch, EvictionPolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

// The other way; what lies outside of the tensor is not written. A thread's copies since its last commit are one group.
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned from, int column, int row, int head,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all that this thread has committed was read from shared memory.
__device__ __forceinline__ void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace cuflash
