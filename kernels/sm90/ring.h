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

// Places of a ring, of which each turn takes one, and barriers of which every turn is a phase: one number for both.
template <int kSlots>
struct PhaseRing {
  unsigned step = 0;  // in two rounds

  __device__ __forceinline__ int slot() const { return static_cast<int>(step < kSlots ? step : step - kSlots); }
  __device__ __forceinline__ unsigned phase() const { return step % 2; }
  __device__ __forceinline__ void advance() { step = step + 1 == 2 * kSlots ? 0 : step + 1; }
};

}  // namespace cuflash
