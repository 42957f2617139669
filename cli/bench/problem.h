// A problem of `cuflash bench` with its tensors, on the host or on the first GPU, ready to be run again and again.
#pragma once

#include <cuflash/cached_attention.h>

#include <vector>

#include "cli/bench/file.h"

namespace cuflash::cli {

// Memory of one device that is gone with its owner.
class BenchMemory {
 public:
  explicit BenchMemory(bool on_cuda) : on_cuda_(on_cuda) {}
  ~BenchMemory();
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  void* take(int64_t bytes);
  void* normal(DType type, int64_t count);  // N(0, 1), never zeros: some processors compute faster on zeros
  void* integers(const std::vector<int32_t>& values);
  void clear(void* data, int64_t bytes) const;
  std::vector<std::byte> read(const void* from, int64_t bytes) const;

 private:
  void write(void* to, const void* from, int64_t bytes) const;

  bool on_cuda_;
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::byte*> device_;
};

// Tensors lie in memory as [B, S, H, D], as models hand them over; the cache of decode too, or pages in random order.
class BenchProblem {
 public:
  BenchProblem(const BenchPoint& point, int32_t threads);

  void run() const;  // CUDA: on the stream of this thread, not waited for
  double workspace_bytes() const;
  // Before a run that has another plan than the last one; on the host nothing is to be done.
  void fit_workspace();
  // Runs, and reads every 13th element of the outputs, which were 0 before: each row and each column has its share.
  std::vector<float> results() const;

  // The score matrix in memory, on one thread of the host; none of it for CUDA and for pages.
  bool has_naive() const;
  void run_naive() const;
  double naive_bytes() const;

 private:
  Tensor tensor(void* data, int64_t length, int64_t heads, int64_t dim) const;
  void make_cache();

  BenchPoint point_;
  bool on_cuda_;
  BenchMemory memory_;
  Execution execution_;
  Attention attention_;
  ForwardOutputs outputs_;
  BackwardTensors gradients_{};
  CacheTensors cache_{};
};

}  // namespace cuflash::cli
