// Device memory and streams for tests of CUDA itself, which check/memory/device.h would hide.
#pragma once

#include <cuflash/flash_attention.h>

#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "dtype.h"
#include "tests/shared/support.h"

namespace cuflash::test {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void write(const void* host, size_t bytes) const;  // waits
  std::vector<std::byte> read() const;               // waits

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct DeviceTensor {
  DeviceBuffer memory;
  Tensor view;
};
DeviceTensor poisoned(const ConstTensor& layout);  // contiguous, NaN
DeviceTensor copy_of(const ConstTensor& host);     // host must be contiguous
DeviceTensor copy_of(const std::vector<int32_t>& lengths);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cuda::CUstream handle() const { return handle_; }
  void wait() const;

 private:
  cuda::CUstream handle_ = nullptr;
};

// The work that a stream received between begin and end, for replay.
class Graph {
 public:
  explicit Graph(const Stream& stream) : stream_(stream) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin();
  void end();
  void replay() const;  // and waits

 private:
  const Stream& stream_;
  cuda::CUgraph graph_ = nullptr;
  cuda::CUgraphExec executable_ = nullptr;
};

// A dense or packed problem on the device, with everything that forward and backward write. The test sets
// lengths, then calls take_workspace.
struct DeviceProblem {
  DeviceTensor q, k, v, dout, o, lse, dq, dk, dv;
  Attention attention;
  DeviceBuffer workspace;
  Execution execution;

  DeviceProblem(const Inputs& in, const Stream& stream);

  void take_workspace();  // with the queried size, for forward and backward
  void forward() const { flash_attention_forward(attention, {.o = o.view, .lse = lse.view}, execution); }
  void backward() const { flash_attention_backward(attention, tensors(), execution); }
  BackwardTensors tensors() const;
  std::vector<std::vector<std::byte>> results() const;  // bits of o, lse and the gradients; waits
};

}  // namespace cuflash::test
