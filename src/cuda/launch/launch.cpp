#include "cuda/launch/launch.h"

#include <array>

#include "cuda/jit/kernel_cache.h"
#include "cuda/jit/program.h"

namespace cuflash::cuda {
namespace {

void enqueue(CUkernel kernel, const Launch& launch, int num_sms, const KernelParams& params, void* stream) {
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
  // The driver copies a parameter block to the start of parameter memory, which is only aligned to 16 bytes. Parameters
  // that it gets by pointer it copies to where the kernel expects them.
  void* data = const_cast<void*>(params.data());
  size_t size = params.size();
  void* block[] = {kLaunchParamBufferPointer, data, kLaunchParamBufferSize, &size, kLaunchParamEnd};
  void* pointers[] = {data};
  const bool aligned = launch.kernel.type->takes_tensor_maps;
  void **by_pointer = aligned ? pointers : nullptr, **as_block = aligned ? nullptr : block;
  // The driver accepts a CUkernel in place of a CUfunction and takes that of the current context.
  const CUresult result =
      driver().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel), by_pointer, as_block);
  if (result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    throw CooperativeLaunchTooLarge(CUFLASH_INTERNAL, join("launch of ", name_of(launch.kernel), ": ", launch.ctas(),
                                                           " CTAs do not fit on the device at one time"));
  if (result != CUDA_SUCCESS) check_failed(result, join("launch of ", name_of(launch.kernel)).c_str());
}

}  // namespace

void launch(const DeviceGuard& current, std::span<const Launch* const> launches, const KernelParams& params,
            void* stream) {
  std::array<CUkernel, 8> kernels{};  // more kernels than any plan has
  size_t count = 0;
  for (const Launch* launch : launches)
    if (launch->grid_x != 0) kernels.at(count++) = cached_kernel(launch->kernel, current.state(), launch->shared_bytes);
  size_t next = 0;
  for (const Launch* launch : launches)
    if (launch->grid_x != 0) enqueue(kernels[next++], *launch, current.state().num_sms, params, stream);
}

}  // namespace cuflash::cuda
