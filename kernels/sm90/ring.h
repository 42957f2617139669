// Positions in a ring of pipeline stages, with the phase parity of their mbarriers.
#pragma once

namespace cuflash {

// The current stage. The phase flips with every pass through the ring.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// The current slot of a ring with one barrier for all slots: the barrier completes one phase per step, so one counter
// serves both.
template <int kSlots>
struct PhaseRing {
  unsigned step = 0;  // modulo two passes through the ring

  __device__ __forceinline__ int slot() const { return static_cast<int>(step < kSlots ? step : step - kSlots); }
  __device__ __forceinline__ unsigned phase() const { return step % 2; }
  __device__ __forceinline__ void advance() { step = step + 1 == 2 * kSlots ? 0 : step + 1; }
};

}  // namespace cuflash
