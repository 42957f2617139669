// The functions of libcuda that are used: F(name, symbol that has its present meaning, parameters...). They return
// CUresult. The table of pointers, the code that fills it and the test of both are made from this list.
#pragma once

#define CUFLASH_DRIVER_FUNCTIONS(F)                                                                                \
  F(cuInit, cuInit, unsigned)                                                                                      \
  F(cuDriverGetVersion, cuDriverGetVersion, int*)                                                                  \
  F(cuGetErrorName, cuGetErrorName, CUresult, const char**)                                                        \
  F(cuGetErrorString, cuGetErrorString, CUresult, const char**)                                                    \
  F(cuDeviceGetCount, cuDeviceGetCount, int*)                                                                      \
  F(cuDeviceGet, cuDeviceGet, CUdevice*, int)                                                                      \
  F(cuDeviceGetName, cuDeviceGetName, char*, int, CUdevice)                                                        \
  F(cuDeviceGetAttribute, cuDeviceGetAttribute, int*, CUdevice_attribute, CUdevice)                                \
  F(cuDeviceTotalMem, cuDeviceTotalMem_v2, size_t*, CUdevice)                                                      \
  F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, CUcontext*, CUdevice)                                      \
  F(cuCtxGetCurrent, cuCtxGetCurrent, CUcontext*)                                                                  \
  F(cuCtxGetDevice, cuCtxGetDevice, CUdevice*)                                                                     \
  F(cuCtxPushCurrent, cuCtxPushCurrent_v2, CUcontext)                                                              \
  F(cuCtxPopCurrent, cuCtxPopCurrent_v2, CUcontext*)                                                               \
  F(cuCtxSynchronize, cuCtxSynchronize)                                                                            \
  F(cuLibraryLoadData, cuLibraryLoadData, CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned) \
  F(cuLibraryUnload, cuLibraryUnload, CUlibrary)                                                                   \
  F(cuLibraryGetKernel, cuLibraryGetKernel, CUkernel*, CUlibrary, const char*)                                     \
  F(cuKernelGetFunction, cuKernelGetFunction, CUfunction*, CUkernel)                                               \
  F(cuKernelSetAttribute, cuKernelSetAttribute, CUfunction_attribute, int, CUkernel, CUdevice)                     \
  F(cuLaunchKernelEx, cuLaunchKernelEx, const CUlaunchConfig*, CUfunction, void**, void**)                         \
  F(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled, CUtensorMap*, CUtensorMapDataType, unsigned, void*,            \
    const std::uint64_t*, const std::uint64_t*, const unsigned*, const unsigned*, CUtensorMapInterleave,           \
    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill)                                           \
  F(cuPointerGetAttributes, cuPointerGetAttributes, unsigned, CUpointer_attribute*, void**, CUdeviceptr)           \
  F(cuMemAlloc, cuMemAlloc_v2, CUdeviceptr*, size_t)                                                               \
  F(cuMemFree, cuMemFree_v2, CUdeviceptr)                                                                          \
  F(cuMemAllocAsync, cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)                                              \
  F(cuMemFreeAsync, cuMemFreeAsync, CUdeviceptr, CUstream)                                                         \
  F(cuMemGetInfo, cuMemGetInfo_v2, size_t*, size_t*)                                                               \
  F(cuMemsetD8Async, cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream)                                \
  F(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*, size_t, CUstream)                           \
  F(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, size_t, CUstream)                                 \
  F(cuStreamCreate, cuStreamCreate, CUstream*, unsigned)                                                           \
  F(cuStreamDestroy, cuStreamDestroy_v2, CUstream)                                                                 \
  F(cuStreamSynchronize, cuStreamSynchronize, CUstream)                                                            \
  F(cuStreamIsCapturing, cuStreamIsCapturing, CUstream, CUstreamCaptureStatus*)                                    \
  F(cuStreamBeginCapture, cuStreamBeginCapture_v2, CUstream, CUstreamCaptureMode)                                  \
  F(cuStreamEndCapture, cuStreamEndCapture, CUstream, CUgraph*)                                                    \
  F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode*)                    \
  F(cuGraphInstantiate, cuGraphInstantiateWithFlags, CUgraphExec*, CUgraph, unsigned long long)                    \
  F(cuGraphLaunch, cuGraphLaunch, CUgraphExec, CUstream)                                                           \
  F(cuGraphDestroy, cuGraphDestroy, CUgraph)                                                                       \
  F(cuGraphExecDestroy, cuGraphExecDestroy, CUgraphExec)

// Null in a libcuda that does not have them: callers have a fallback.
#define CUFLASH_OPTIONAL_DRIVER_FUNCTIONS(F) \
  F(cuTensorMapReplaceAddress, cuTensorMapReplaceAddress, CUtensorMap*, void*)
