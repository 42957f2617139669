// TMA: loads of boxes that complete on an mbarrier, issued by producer warps, and stores of boxes. A TensorMap
// describes the tensor. PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor, prefetch.tensormap".
#pragma once

#include "params.h"

namespace cuflash {

// L2 eviction policy of a load.
using EvictionPolicy = unsigned long long;
__device__ __forceinline__ EvictionPolicy evict_normal() {
  EvictionPolicy policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// The policy of data that is not read again soon: it is evicted before all other lines of L2.
__device__ __forceinline__ EvictionPolicy evict_first() {
  EvictionPolicy policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// evict_first for one line of 16, evict_unchanged for the others, which are evicted by age. With evict_first for all,
// dirty lines of earlier kernels would stay in L2 and be written back piecemeal between reads, which slows down all of
// a long call. A short call is faster if they stay. The fraction was measured: docs/lab/kv.md.
__device__ __forceinline__ EvictionPolicy evict_first_sixteenth() {
  EvictionPolicy policy;
  asm("createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %0, 0.0625;" : "=l"(policy));
  return policy;
}

// Loads the box at (column, row, head, batch) and zero-fills what is outside of the tensor. Completes all bytes of the
// box on the mbarrier. `to` is 128-byte aligned.
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

// Stores a box; elements outside of the tensor are not written. A thread's stores since its last commit form one group.
__device__ __forceinline__ void tma_store(const TensorMap& map, unsigned from, int column, int row, int head,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all committed stores of this thread have read their shared memory.
__device__ __forceinline__ void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace cuflash
