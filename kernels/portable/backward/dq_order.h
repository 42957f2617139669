// The order in which tiles of keys add to the sums of dQ, where it matters.
#pragma once

#include "portable/backward/shape.h"

namespace cuflash {

// Sums that are added in one order are the same in every call. The order is that of the keys: a CTA waits until the tiles
// of keys in front of its own have been added. CTAs take tiles of keys in that order, too, so whoever is waited for runs. `meet` is a
// barrier of all threads that add; one of them has the number 0.
template <BackwardConfig C, class Meet>
__device__ __forceinline__ void wait_for_turn(const BackwardParams& p, const Place& at, int64 number, int tile,
                                              int thread, Meet meet) {
  if constexpr (C.ordered) {
    if (thread == 0) {
      const Range queries{int64{tile} * C.tile_q, min(int64{tile + 1} * C.tile_q, int64{at.sequence.len_q})};
      const int64 first = keys_of_any(p.attention, at.sequence, queries).begin / C.tile_k;
      while (load_acquire(p.dq_semaphore + number) != static_cast<unsigned>(at.first / C.tile_k - first)) {}
    }
    meet();
  }
}
template <BackwardConfig C, class Meet>
__device__ __forceinline__ void pass_turn_on(const BackwardParams& p, int64 number, int thread, Meet meet) {
  if constexpr (C.ordered) {
    meet();
    if (thread == 0) add_release(p.dq_semaphore + number, 1);
  }
}

}  // namespace cuflash
