// libcuda, opened when it is first needed.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/driver_types.h"

namespace cuflash::cuda {

constexpr int kMinDriverVersion = 12030;  // 12.3, as cuDriverGetVersion counts

// The functions of libcuda under their names. Streams: 0 is the legacy default stream.
struct Driver {
  std::string path;     // where the library lies
  int version = 0;      // 13000: CUDA 13.0
  std::string missing;  // a function that this libcuda does not have, or ""

  CUresult (*cuInit)(unsigned);
  CUresult (*cuDriverGetVersion)(int*);
  CUresult (*cuGetErrorName)(CUresult, const char**);
  CUresult (*cuGetErrorString)(CUresult, const char**);

  CUresult (*cuDeviceGetCount)(int*);
  CUresult (*cuDeviceGet)(CUdevice*, int);
  CUresult (*cuDeviceGetName)(char*, int, CUdevice);
  CUresult (*cuDeviceGetAttribute)(int*, CUdevice_attribute, CUdevice);
  CUresult (*cuDeviceTotalMem)(size_t*, CUdevice);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
  CUresult (*cuCtxGetDevice)(CUdevice*);
  CUresult (*cuCtxPushCurrent)(CUcontext);
  CUresult (*cuCtxPopCurrent)(CUcontext*);
  CUresult (*cuCtxSynchronize)();

  CUresult (*cuLibraryLoadData)(CUlibrary*, const void* code, int* jit_options, void** jit_values, unsigned num_jit,
                                int* library_options, void** library_values, unsigned num_library);
  CUresult (*cuLibraryUnload)(CUlibrary);
  CUresult (*cuLibraryGetKernel)(CUkernel*, CUlibrary, const char*);
  CUresult (*cuKernelGetFunction)(CUfunction*, CUkernel);
  CUresult (*cuKernelSetAttribute)(CUfunction_attribute, int, CUkernel, CUdevice);
  CUresult (*cuLaunchKernelEx)(const CUlaunchConfig*, CUfunction, void** params, void** extra);

  CUresult (*cuPointerGetAttributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr);
  CUresult (*cuMemAlloc)(CUdeviceptr*, size_t);
  CUresult (*cuMemFree)(CUdeviceptr);
  CUresult (*cuMemAllocAsync)(CUdeviceptr*, size_t, CUstream);
  CUresult (*cuMemFreeAsync)(CUdeviceptr, CUstream);
  CUresult (*cuMemGetInfo)(size_t* free, size_t* total);
  CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char, size_t, CUstream);
  CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr, const void*, size_t, CUstream);
  CUresult (*cuMemcpyDtoHAsync)(void*, CUdeviceptr, size_t, CUstream);

  CUresult (*cuStreamCreate)(CUstream*, unsigned flags);
  CUresult (*cuStreamDestroy)(CUstream);
  CUresult (*cuStreamSynchronize)(CUstream);
  CUresult (*cuStreamIsCapturing)(CUstream, CUstreamCaptureStatus*);
  CUresult (*cuStreamBeginCapture)(CUstream, CUstreamCaptureMode);
  CUresult (*cuStreamEndCapture)(CUstream, CUgraph*);
  CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode*);
  CUresult (*cuGraphInstantiate)(CUgraphExec*, CUgraph, unsigned long long flags);
  CUresult (*cuGraphLaunch)(CUgraphExec, CUstream);
  CUresult (*cuGraphDestroy)(CUgraph);
  CUresult (*cuGraphExecDestroy)(CUgraphExec);
};

// Opens and initialises libcuda. Throws CUFLASH_NO_DEVICE, with what was looked for and what was found.
const Driver& driver();

// Whether this process has libcuda already. One that holds device memory has, so "no" means: all memory is host memory.
// Cheap enough for every call; opens and initialises nothing.
bool driver_is_loaded();
// Its functions, not initialised by us; null where driver_is_loaded() is false.
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
