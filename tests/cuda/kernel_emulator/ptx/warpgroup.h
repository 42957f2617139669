// Host version of kernels/ptx/warpgroup.h: registers are unlimited, and products complete when they are issued. Waiting
// for them is an instruction of the whole warp.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

template <int kRegisters>
inline void setmaxnreg_inc() {}
template <int kRegisters>
inline void setmaxnreg_dec() {}

inline void wgmma_fence() {}
inline void wgmma_commit() {}
inline void converge() {}
template <int kPending>
inline void wgmma_wait() {
  kernel_emulator::exchange("", 1);
}
inline void fence_operand(float&) {}
inline void fence_operand(unsigned&) {}

inline int uniform(int x) { return of_lane<int>(kernel_emulator::exchange(&x, sizeof x), 0); }

}  // namespace cuflash
