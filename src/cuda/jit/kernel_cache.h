// Loaded kernels: in memory here, otherwise from the pack, the disk cache or the compiler (binaries.h).
#pragma once

#include <string>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/jit/binaries.h"
#include "cuda/jit/kernel_key.h"

namespace cuflash::cuda {

// A kernel that is ready to launch on the device, which must be current. shared_bytes: dynamic shared memory of its
// launches, which the key determines.
CUkernel cached_kernel(const KernelKey& key, const DeviceState& device, int shared_bytes);

// The kernels that this process has loaded, in that order, and how long each took.
struct LoadedKernel {
  std::string name;
  Origin origin;
  double seconds;
};
std::vector<LoadedKernel> loaded_kernels();

}  // namespace cuflash::cuda
