// libcuda, opened at its first use.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/driver/functions.h"
#include "cuda/driver/types.h"

namespace cuflash::cuda {

constexpr int kMinDriverVersion = 12030;  // 12.3, as cuDriverGetVersion counts

// The functions of libcuda under their names. Streams: 0 is the legacy default stream.
struct Driver {
  std::string path;     // path of the library
  int version = 0;      // 13000: CUDA 13.0
  std::string missing;  // a function that this libcuda does not have, or ""

#define CUFLASH_POINTER(name, symbol, ...) CUresult (*name)(__VA_ARGS__) = nullptr;
  CUFLASH_DRIVER_FUNCTIONS(CUFLASH_POINTER)
  CUFLASH_OPTIONAL_DRIVER_FUNCTIONS(CUFLASH_POINTER)
#undef CUFLASH_POINTER
};

// Opens and initialises libcuda. Throws CUFLASH_NO_DEVICE, with where it looked and what it found.
const Driver& driver();

// Whether this process has loaded libcuda. A process that holds device memory has loaded it, so "no" means that all
// memory is host memory. The check is cheap enough for every call, and opens and initialises nothing.
bool driver_is_loaded();
// The functions of the loaded libcuda, which this library has not initialised; null where driver_is_loaded() is false.
const Driver* loaded_driver();

// Throws with CUDA's own words: CUFLASH_OUT_OF_MEMORY for a failed allocation, CUFLASH_NO_DEVICE for a device that is
// gone, CUFLASH_INTERNAL for the rest.
[[noreturn]] void check_failed(CUresult result, const char* what);
inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) check_failed(result, what);
}

// "13.0" of 13000
std::string version_text(int version);

}  // namespace cuflash::cuda
