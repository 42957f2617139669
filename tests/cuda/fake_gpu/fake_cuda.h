// A driver for two GPUs that do not exist, and a compiler for them: everything of the CUDA backend but its kernels runs
// against these, on machines without a GPU. Memory is the host's, streams are done at once, and a launch calls whoever
// wants to be called. What real CUDA answers with an error is an error here: a stream of another device than the current
// one, no current device, waiting or allocating while a stream is captured.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuflash::test {

struct FakeLaunch {
  int device;  // the current one
  void* stream;
  const char* program;
  const void* params;
  size_t params_size;  // 0: they were given by a pointer
  unsigned grid_x, grid_y, grid_z, threads, shared_bytes;
  bool programmatic, cooperative;  // attributes
};

struct FakeCuda {
  void (*on_launch)(const FakeLaunch&) = nullptr;
  int launches = 0;
  int blocks = 0;        // of device memory that are allocated
  int pool_blocks = 0;   // of these, from a pool
  bool crowded = false;  // there is no room for CTAs that run together
};

// What its tensor maps hold.
struct FakeTensorMap {
  const void* address;
  std::uint64_t extents[4], strides[3];
  unsigned box_rows;
};

}  // namespace cuflash::test

extern "C" cuflash::test::FakeCuda* fake_cuda();
