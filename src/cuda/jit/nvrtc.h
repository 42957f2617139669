// libnvrtc, the run-time compiler, opened when the first kernel must be compiled. Needs no GPU.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cuflash::cuda {

constexpr int kMinNvrtcVersion = 12030;  // 12.3, encoded like the driver's versions

using NvrtcProgram = struct NvrtcProgramState*;

// 0 is success.
struct Nvrtc {
  std::string path;
  int version = 0;

  int (*nvrtcVersion)(int* major, int* minor);
  const char* (*nvrtcGetErrorString)(int);
  int (*nvrtcGetNumSupportedArchs)(int*);
  int (*nvrtcGetSupportedArchs)(int*);
  int (*nvrtcCreateProgram)(NvrtcProgram*, const char* source, const char* name, int num_headers,
                            const char* const* headers, const char* const* include_names);
  int (*nvrtcDestroyProgram)(NvrtcProgram*);
  int (*nvrtcCompileProgram)(NvrtcProgram, int num_options, const char* const* options);
  int (*nvrtcGetCUBINSize)(NvrtcProgram, size_t*);
  int (*nvrtcGetCUBIN)(NvrtcProgram, char*);
  int (*nvrtcGetProgramLogSize)(NvrtcProgram, size_t*);
  int (*nvrtcGetProgramLog)(NvrtcProgram, char*);
};

// Throws CUFLASH_NO_DEVICE, with the paths that were searched and what was found there.
const Nvrtc& nvrtc();

// The first of these libraries that can be opened and is recent enough.
Nvrtc load_nvrtc(const std::vector<std::string>& candidates);

// File names for the loader, best first: a library that is loaded already, the system's, those of CUDA_HOME and
// /usr/local, and those of Python packages (PyTorch, NVIDIA's wheels).
std::vector<std::string> nvrtc_candidates();

}  // namespace cuflash::cuda
