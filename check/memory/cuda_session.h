// The CUDA resources that a thread needs to call the library: the first device, its own stream, and reusable memory.
#pragma once

#include <cstddef>

namespace cuflash::check {

class CudaSession {
 public:
  // The session of this thread. Throws if there is no device.
  static CudaSession& of_thread();

  void* stream() const { return stream_; }

  // A block of at least this size, 256-byte aligned; it invalidates the previous one. Large blocks are not kept.
  std::byte* memory(size_t bytes);

  // A separate allocation, for tests that detect accesses beyond its end.
  std::byte* allocate(size_t bytes);
  void release(std::byte* block) noexcept;

  void upload(std::byte* device, const std::byte* host, size_t bytes);
  void download(std::byte* host, const std::byte* device, size_t bytes);
  void wait();

  CudaSession(const CudaSession&) = delete;
  CudaSession& operator=(const CudaSession&) = delete;

 private:
  CudaSession();
  ~CudaSession();

  void* stream_ = nullptr;
  std::byte* block_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cuflash::check
