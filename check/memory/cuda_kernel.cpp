#include "check/memory/cuda_kernel.h"

#include "cuda/driver/device.h"
#include "cuda/jit/compile.h"

namespace cuflash::check {

using cuda::driver;

CudaKernel::CudaKernel(const char* name, const std::string& source) {
  cuda::Program program;
  program.name = name, program.arch = cuda::device(0).arch, program.source = source;
  const std::string cubin = cuda::compile(program).cubin;
  cuda::check(driver().cuLibraryLoadData(&library_, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
              "cuLibraryLoadData");
  cuda::check(driver().cuLibraryGetKernel(&kernel_, library_, cuda::kEntryName), "cuLibraryGetKernel");
}

void CudaKernel::launch(unsigned threads, void** params, void* stream) const {
  cuda::CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = threads, config.blockDimY = config.blockDimZ = 1;
  config.hStream = static_cast<cuda::CUstream>(stream);
  cuda::check(driver().cuLaunchKernelEx(&config, reinterpret_cast<cuda::CUfunction>(kernel_), params, nullptr),
              "cuLaunchKernelEx");
}

}  // namespace cuflash::check
