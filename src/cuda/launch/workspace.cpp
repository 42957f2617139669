#include "cuda/launch/workspace.h"

#include "cuda/driver/driver.h"
#include "error.h"

namespace cuflash::cuda {

Workspace::Workspace(const Execution& e, size_t bytes) : stream_(e.stream) {
  if (bytes == 0) return;
  if (e.workspace) {
    if (e.workspace_size < bytes)
      reject("workspace: workspace_size is ", e.workspace_size, " bytes, this call needs ", bytes,
             "; ask cuflash_*_workspace_size with the same execution");
    data_ = e.workspace;
    return;
  }
  if (e.allocate) {
    data_ = e.allocate(e.allocate_context, bytes);
    if (!data_)
      throw FlashAttentionError(CUFLASH_OUT_OF_MEMORY,
                                join("allocate: returned NULL for the ", bytes, " bytes that this call needs"));
    return;
  }
  if (!e.workspace_from_pool)
    reject("workspace: is NULL, but this call needs ", bytes, " bytes of device memory; pass a workspace of the size ",
           "that cuflash_*_workspace_size says, or set workspace_from_pool");
  CUdeviceptr block = 0;
  const CUresult result = driver().cuMemAllocAsync(&block, bytes, static_cast<CUstream>(stream_));
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    throw FlashAttentionError(
        CUFLASH_OUT_OF_MEMORY,
        join("workspace: the device's memory pool cannot provide the ", bytes,
             " bytes that this call needs; make the problem smaller or pass a workspace of your own"));
  check(result, "cuMemAllocAsync");
  data_ = reinterpret_cast<void*>(block);
  from_pool_ = true;
}

// A failure here is a failure of the stream, which the next operation on it reports.
Workspace::~Workspace() {
  if (from_pool_) driver().cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(data_), static_cast<CUstream>(stream_));
}

}  // namespace cuflash::cuda
