// The order in which tiles of keys add to the sums of dQ, where it matters.
#pragma once

#include "portable/backward/shape.h"

namespace cuflash {

// Sums that are added in one order are the same in every call. The order is that of the keys: a CTA waits until the tiles
// of keys in front of its own have been added. CTAs take tiles of keys in that order, too, so whoever is waited for runs. `meet` is a
// barrier of all threads that add; one of them has the number 0.
template <BackwardConfig C, class Sync>
__device__ __forceinline__ void wait_dq_semaphore(const BackwardParams& p, const TaskCoord& coord, int64 number,
                                                  int tile, int thread, Sync sync) {
  if constexpr (C.ordered) {
    if (thread == 0) {
      const Range queries{int64{tile} * C.tile_q, min(int64{tile + 1} * C.tile_q, int64{coord.sequence.len_q})};
      const int64 first = keys_of_any(p.attention, coord.sequence, queries).begin / C.tile_k;
      while (load_acquire(p.dq_semaphore + number) != static_cast<unsigned>(coord.k_first / C.tile_k - first)) {}
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
