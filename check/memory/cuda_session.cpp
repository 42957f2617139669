#include "check/memory/cuda_session.h"

#include <algorithm>
#include <utility>

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"

namespace cuflash::check {
namespace {

using cuda::driver;

constexpr size_t kSmallestBlock = size_t{16} << 20, kLargestKept = size_t{1} << 30;
constexpr unsigned kNonBlocking =
    1;  // CU_STREAM_NON_BLOCKING: no implicit waits between this and other threads' streams

const cuda::DeviceState& first_device() { return cuda::device(0); }
cuda::CUdeviceptr address(const void* data) { return reinterpret_cast<cuda::CUdeviceptr>(data); }
cuda::CUstream handle(void* stream) { return static_cast<cuda::CUstream>(stream); }

}  // namespace

CudaSession& CudaSession::of_thread() {
  thread_local CudaSession session;
  return session;
}

CudaSession::CudaSession() {
  const cuda::DeviceGuard guard(first_device());
  cuda::CUstream stream = nullptr;
  cuda::check(driver().cuStreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  stream_ = stream;
}

CudaSession::~CudaSession() {
  release(block_);
  driver().cuStreamDestroy(handle(stream_));
}

std::byte* CudaSession::allocate(size_t bytes) {
  const cuda::DeviceGuard guard(first_device());
  cuda::CUdeviceptr block = 0;
  cuda::check(driver().cuMemAlloc(&block, bytes), "cuMemAlloc");
  return reinterpret_cast<std::byte*>(block);
}

// After a kernel has failed, every call fails, including this one; the failure was reported when it happened.
void CudaSession::release(std::byte* block) noexcept {
  if (block) driver().cuMemFree(address(block));
}

std::byte* CudaSession::memory(size_t bytes) {
  if (size_ >= bytes && size_ <= kLargestKept) return block_;
  release(std::exchange(block_, nullptr));
  size_ = std::max(bytes, kSmallestBlock);
  return block_ = allocate(size_);
}

void CudaSession::upload(std::byte* device, const std::byte* host, size_t bytes) {
  const cuda::DeviceGuard guard(first_device());
  cuda::check(driver().cuMemcpyHtoDAsync(address(device), host, bytes, handle(stream_)), "cuMemcpyHtoDAsync");
}

void CudaSession::download(std::byte* host, const std::byte* device, size_t bytes) {
  const cuda::DeviceGuard guard(first_device());
  cuda::check(driver().cuMemcpyDtoHAsync(host, address(device), bytes, handle(stream_)), "cuMemcpyDtoHAsync");
}

void CudaSession::wait() {
  const cuda::DeviceGuard guard(first_device());
  cuda::check(driver().cuStreamSynchronize(handle(stream_)), "cuStreamSynchronize");
}

}  // namespace cuflash::check
