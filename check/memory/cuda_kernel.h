// A small kernel of one's own for measuring, compiled by NVRTC on the first device.
#pragma once

#include <string>

#include "cuda/driver/driver.h"

namespace cuflash::check {

class CudaKernel {
 public:
  // The source's entry is named cuflash_kernel. Throws where there is no compiler.
  CudaKernel(const char* name, const std::string& source);
  ~CudaKernel() { cuda::driver().cuLibraryUnload(library_); }
  CudaKernel(const CudaKernel&) = delete;
  CudaKernel& operator=(const CudaKernel&) = delete;

  // One block; params point to the arguments, as the driver takes them. The first device is current.
  void launch(unsigned threads, void** params, void* stream) const;

 private:
  cuda::CUlibrary library_ = nullptr;
  cuda::CUkernel kernel_ = nullptr;
};

}  // namespace cuflash::check
