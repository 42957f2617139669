// A problem of `cuflash bench` with its tensors, on the host or on the first GPU, ready to run repeatedly.
#pragma once

#include <cuflash/cached_attention.h>

#include <vector>

#include "cli/bench/file.h"

namespace cuflash::cli {

// Device or host memory, freed by its owner's destructor.
class BenchMemory {
 public:
  explicit BenchMemory(bool on_cuda) : on_cuda_(on_cuda) {}
  ~BenchMemory();
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  void* take(int64_t bytes);
  void* normal(DType type, int64_t count);  // N(0, 1), never zeros: some processors compute faster on zeros
  void* integers(const std::vector<int32_t>& values);
  void* slopes(int64_t heads);    // f32
  void* booleans(int64_t count);  // 70% true, at random
  void clear(void* data, int64_t bytes) const;
  std::vector<std::byte> read(const void* from, int64_t bytes) const;

 private:
  void write(void* to, const void* from, int64_t bytes) const;

  bool on_cuda_;
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::byte*> device_;
};

// Tensors are [B, S, H, D] in memory, as models pass them; so is the cache of decode, or it is pages in random order.
class BenchProblem {
 public:
  BenchProblem(const BenchPoint& point, int32_t threads);

  void run() const;  // CUDA: asynchronous, on this thread's stream
  double workspace_bytes() const;
  // Call before a run whose plan differs from the last one. Does nothing on the host.
  void fit_workspace();
  // Zeroes the outputs, runs, and returns every 13th element, which samples each row and each column.
  std::vector<float> results() const;

  // Naive attention with the score matrix in memory, on one host thread. Not for CUDA and not for pages.
  bool has_naive() const;
  void run_naive() const;
  double naive_bytes() const;

 private:
  Tensor tensor(void* data, int64_t length, int64_t heads, int64_t dim) const;
  void add_options();
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
