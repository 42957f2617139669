// The only launch of the library.
#pragma once

#include <cstddef>

#include "cuda/plan.h"

namespace cuflash::cuda {

// Enqueues a kernel on a stream of the device, whichever device is current; nothing where the grid is 0. params: the
// struct that the kernel takes, copied before this returns.
void launch(int device, const Launch& launch, const void* params, size_t params_size, void* stream);

}  // namespace cuflash::cuda
