#include "cuda/launch/launch.h"

#include <array>

#include "cuda/jit/kernel_cache.h"
#include "cuda/jit/program.h"

namespace cuflash::cuda {
namespace {

// The shape and the attributes of a launch in the form of the driver, which keeps no pointer to them.
struct LaunchConfig : CUlaunchConfig {
  LaunchConfig(const Launch& launch, int num_sms, void* stream) : CUlaunchConfig{} {
    gridDimX = grid_of(launch, num_sms), gridDimY = launch.grid_y, gridDimZ = launch.grid_z;
    blockDimX = static_cast<unsigned>(launch.threads), blockDimY = blockDimZ = 1;
    sharedMemBytes = static_cast<unsigned>(launch.shared_bytes);
    hStream = static_cast<CUstream>(stream);
    attrs = attributes_;
    if (launch.programmatic) set(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
    if (launch.cooperative) set(CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

 private:
  void set(CUlaunchAttributeID id) {
    attributes_[numAttrs].id = id;
    attributes_[numAttrs++].value[0] = 1;
  }

  CUlaunchAttribute attributes_[2]{};
};

void check_launched(CUresult result, const Launch& launch) {
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
  // The driver copies a block to the start of the parameters, which is aligned to 16 bytes only, and what it gets by a
  // pointer to where the kernel expects it.
  void* data = const_cast<void*>(params.data());
  size_t size = params.size();
  void* block[] = {kLaunchParamBufferPointer, data, kLaunchParamBufferSize, &size, kLaunchParamEnd};
  void* pointers[] = {data};
  size_t next = 0;
  for (const Launch* launch : launches) {
    if (launch->grid_x == 0) continue;
    const LaunchConfig config(*launch, current.state().num_sms, stream);
    const bool aligned = launch->kernel.type->takes_tensor_maps;
    void **by_pointer = aligned ? pointers : nullptr, **as_block = aligned ? nullptr : block;
    // The driver accepts a CUkernel in place of a CUfunction and takes that of the current context.
    const auto function = reinterpret_cast<CUfunction>(kernels[next++]);
    check_launched(driver().cuLaunchKernelEx(&config, function, by_pointer, as_block), *launch);
  }
}

}  // namespace cuflash::cuda
