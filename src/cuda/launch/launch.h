// The only launch of the library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>

#include "cuda/driver/device.h"
#include "cuda/plan.h"
#include "error.h"

namespace cuflash::cuda {

// CTAs in the first dimension of the grid.
inline uint32_t grid_of(const Launch& launch, int num_sms) {
  return launch.persistent ? std::min(launch.grid_x, static_cast<uint32_t>(num_sms)) : launch.grid_x;
}

// What launch throws where CTAs that run together do not fit, on a part of a device, say.
struct NoRoomForAll : FlashAttentionError {
  using FlashAttentionError::FlashAttentionError;
};

// Enqueues kernels on a stream of the device that is current, one after the other; those with a grid of 0 are left out.
// All of them are at hand before the first is enqueued: a call that lacks one has done nothing. params: the struct that
// every one of them takes, copied before this returns.
void launch(const DeviceGuard& current, std::span<const Launch* const> launches, const void* params, size_t params_size,
            void* stream);
inline void launch(const DeviceGuard& current, std::initializer_list<const Launch*> launches, const void* params,
                   size_t params_size, void* stream) {
  launch(current, std::span(launches.begin(), launches.size()), params, params_size, stream);
}

}  // namespace cuflash::cuda
