// Places that are filled and emptied in turns.
#pragma once

namespace cuflash {

// The next place of a ring. The phase of its barriers changes with every round.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

}  // namespace cuflash
