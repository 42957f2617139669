// Host version of kernels/ptx/grid.h, where grids do not overlap.
#pragma once

namespace cuflash {

inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}

}  // namespace cuflash
