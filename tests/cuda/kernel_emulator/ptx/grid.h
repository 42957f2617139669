// Host version of kernels/ptx/grid.h, where grids do not overlap.
#pragma once

#include "tests/cuda/kernel_emulator/lanes.h"

namespace cuflash {

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
inline void sleep_for(unsigned) { kernel_emulator::yield(); }

}  // namespace cuflash
