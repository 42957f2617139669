// A driver for two fake GPUs, and a compiler for them: all of the CUDA backend except its kernels runs on them, on
// machines without a GPU. Device memory is host memory, streams complete at once, and a launch calls on_launch. What is
// an error in CUDA is an error here: a stream of another device than the current one, no current device, waiting or
// allocating while a stream is captured.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace cuflash::test {

struct FakeLaunch {
  int device;  // the current device
  void* stream;
  const char* program;
  const void* params;
  size_t params_size;  // 0: passed by a pointer
  unsigned grid_x, grid_y, grid_z, threads, shared_bytes;
  bool programmatic, cooperative;  // attributes
};

struct FakeGpu {
  void (*on_launch)(const FakeLaunch&) = nullptr;
  int launches = 0;
  int blocks = 0;        // allocated blocks of device memory
  int pool_blocks = 0;   // those of them that are from a pool
  bool crowded = false;  // cooperative launches do not fit
};

// The content of its tensor maps.
struct FakeTensorMap {
  const void* address;
  std::uint64_t extents[4], strides[3];
  unsigned box_rows, box_heads, box_columns;
  unsigned element_bytes, swizzle_bytes;  // swizzle: 64 or 128; 0: none
};

}  // namespace cuflash::test

extern "C" cuflash::test::FakeGpu* fake_gpu();

namespace cuflash::test {

// The one that the library has loaded, or will load, in place of the driver.
inline FakeGpu& loaded_fake_gpu() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  auto* get = library ? reinterpret_cast<FakeGpu* (*)()>(::dlsym(library, "fake_gpu")) : nullptr;
  if (!get) throw std::runtime_error("this test needs the fake libcuda.so.1 in LD_LIBRARY_PATH; ctest sets it");
  return *get();
}

}  // namespace cuflash::test
