// Deterministic mode: the order in which key tiles add to dq_accum.
#pragma once

#include "portable/backward/shape.h"

namespace cuflash {

// Floating-point sums are reproducible if their order is fixed. Here it is key order: a CTA waits until the semaphore
// of the query tile counts all earlier key tiles. CTAs also take key tiles in that order, so the CTA that they wait for
// is always running. sync() synchronises all threads that add; thread 0 is one of them.
template <BackwardConfig C, class Sync>
__device__ __forceinline__ void wait_dq_semaphore(const BackwardParams& p, const TaskCoord& coord, int64 number,
                                                  int tile, int thread, Sync sync) {
  if constexpr (C.ordered) {
    if (thread == 0) {
      const Range queries{int64{tile} * C.tile_q, min(int64{tile + 1} * C.tile_q, int64{coord.sequence.len_q})};
      const int64 first = keys_of_any(p.attention, coord.sequence, queries).begin / C.tile_k;
      const bool counted = (C.options & kMaskTensor) != 0;  // a mask hides some of them
      const auto before = static_cast<unsigned>(counted ? coord.dq_before : coord.k_first / C.tile_k - first);
      while (load_acquire(p.dq_semaphore + number) != before) {}
    }
    sync();
  }
}
template <BackwardConfig C, class Sync>
__device__ __forceinline__ void release_dq_semaphore(const BackwardParams& p, int64 number, int thread, Sync sync) {
  if constexpr (C.ordered) {
    sync();
    if (thread == 0) add_release(p.dq_semaphore + number, 1);
  }
}

}  // namespace cuflash
