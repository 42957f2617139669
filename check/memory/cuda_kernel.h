// A small kernel for measurements, compiled by NVRTC for the first device.
#pragma once

#include <string>

#include "cuda/driver/driver.h"

namespace cuflash::check {

class CudaKernel {
 public:
  // The entry point must be named cuflash_kernel. Throws if there is no compiler.
  CudaKernel(const char* name, const std::string& source);
  ~CudaKernel() { cuda::driver().cuLibraryUnload(library_); }
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // Launches one block; params point to the arguments, as for the driver. The first device must be current.
  void launch(unsigned threads, void** params, void* stream) const;

 private:
  cuda::CUlibrary library_ = nullptr;
  cuda::CUkernel kernel_ = nullptr;
};

}  // namespace cuflash::check
