// A libcuda that records its calls. It has three devices: two of sm_90, and one that is too old.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/types.h"

namespace cuflash::test {

struct FakeLaunch {
  int device;  // the device of the current context
  unsigned grid_x, grid_y, grid_z, threads, shared_bytes;
  void* stream;
  std::string params;
};

// The content of its tensor maps.
struct FakeTensorMap {
  const void* address;
  std::uint64_t extents[4], strides[3];
  unsigned box[4];
  int type;

  bool operator==(const FakeTensorMap&) const = default;
};

struct RecordingDriver {
  // Sets what happens next.
  int launch_result = 0, load_result = 0, encode_result = 0, replace_result = 0;
  // Recorded calls. Launches are recorded as far as there is room, without allocating.
  std::vector<FakeLaunch> launches;
  std::vector<std::string> loaded;                           // code
  std::map<std::pair<void*, int>, std::vector<int>> shared;  // (kernel, device): values that were set
  std::vector<int> capture_modes;                            // while code was loaded
  int pushes = 0, pops = 0;
  int encoded = 0, replaced = 0;  // tensor maps
};

// Context number c belongs to device c % 10; the primary one of device d is d + 10.
inline cuda::CUcontext context(int number) {
  return reinterpret_cast<cuda::CUcontext>(static_cast<std::uintptr_t>(number));
}

}  // namespace cuflash::test
