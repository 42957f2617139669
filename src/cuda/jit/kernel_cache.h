// The one cache of kernels: memory here, then pack, disk and compiler (binaries.h).
#pragma once

#include "cuda/driver/device.h"
#include "cuda/jit/kernel_key.h"

namespace cuflash::cuda {

// Ready to be launched on the device, which must be current. shared_bytes: dynamic shared memory of its launches, a
// function of the key.
CUkernel cached_kernel(const KernelKey& key, const DeviceState& device, int shared_bytes);

}  // namespace cuflash::cuda
