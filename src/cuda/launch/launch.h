// The only function of the library that launches kernels.
#pragma once

#include <span>

#include "cuda/driver/device.h"
#include "cuda/families/family.h"
#include "error.h"

namespace cuflash::cuda {

// Thrown if the CTAs of a cooperative launch do not fit at the same time, for example on a part of a device.
struct CooperativeLaunchTooLarge : FlashAttentionError {
  using FlashAttentionError::FlashAttentionError;
};

// Enqueues kernels on a stream of the current device, one after the other, except those with a grid of 0. All of them
// are loaded before the first is enqueued: if a kernel is missing, the call has done nothing. params: the struct that
// all of them take, copied before this returns.
void launch(const DeviceGuard& current, std::span<const Launch* const> launches, const KernelParams& params,
            void* stream);

}  // namespace cuflash::cuda
