#include "cuda/launch/launch.h"

#include <array>

#include "cuda/jit/kernel_cache.h"
#include "cuda/jit/program.h"

namespace cuflash::cuda {
namespace {

void enqueue(CUkernel kernel, const Launch& launch, int num_sms, const void* params, size_t params_size, void* stream) {
  CUlaunchConfig config{};
  config.gridDimX = grid_of(launch, num_sms), config.gridDimY = launch.grid_y, config.gridDimZ = launch.grid_z;
  config.blockDimX = static_cast<unsigned>(launch.threads), config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
  config.hStream = static_cast<CUstream>(stream);
  CUlaunchAttribute attributes[2]{};
  config.attrs = attributes;
  const auto set = [&](CUlaunchAttributeID id) {
    attributes[config.numAttrs].id = id;
    attributes[config.numAttrs++].value[0] = 1;
  };
  if (launch.programmatic) set(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  if (launch.cooperative) set(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  // The driver puts what it gets as a block at the begin of the parameters, which is a multiple of 16 bytes only; what it
  // gets by a pointer where the kernel's code expects it.
  void* block[] = {kLaunchParamBufferPointer, const_cast<void*>(params), kLaunchParamBufferSize, &params_size,
                   kLaunchParamEnd};
  void* pointers[] = {const_cast<void*>(params)};
  void **by_pointer = launch.aligned_params ? pointers : nullptr, **as_block = launch.aligned_params ? nullptr : block;
  // A CUkernel is accepted in place of a CUfunction: the driver takes that of the current context.
  const CUresult result =
      driver().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), by_pointer, as_block);
  if (result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    throw NoRoomForAll(CUFLASH_INTERNAL, join("launch of ", name_of(launch.kernel), ": ", launch.ctas(),
                                              " CTAs do not fit on the device at one time"));
  if (result != CUDA_SUCCESS) check_failed(result, join("launch of ", name_of(launch.kernel)).c_str());
}

}  // namespace

void launch(const DeviceGuard& current, std::span<const Launch* const> launches, const void* params, size_t params_size,
            void* stream) {
  std::array<CUkernel, 8> kernels{};  // more than any call has
  size_t count = 0;
  for (const Launch* launch : launches)
    if (launch->grid_x != 0) kernels.at(count++) = cached_kernel(launch->kernel, current.state(), launch->shared_bytes);
  size_t next = 0;
  for (const Launch* launch : launches)
    if (launch->grid_x != 0) enqueue(kernels[next++], *launch, current.state().num_sms, params, params_size, stream);
}

}  // namespace cuflash::cuda
