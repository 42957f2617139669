// The only launch of the library.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "cuda/device.h"
#include "cuda/plan.h"

namespace cuflash::cuda {

// Enqueues kernels on a stream of the device that is current, one after the other; those with a grid of 0 are left out.
// All of them are at hand before the first is enqueued: a call that lacks one has done nothing. params: the struct that
// every one of them takes, copied before this returns.
void launch(const DeviceGuard& current, std::initializer_list<const Launch*> launches, const void* params,
            size_t params_size, void* stream);

}  // namespace cuflash::cuda
