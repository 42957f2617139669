#include "libcuda.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

using namespace cuflash::cuda;
using cuflash::test::FakeTensorMap;
using cuflash::test::RecordingDriver;

namespace {

int device_of(CUcontext context) { return static_cast<int>(reinterpret_cast<std::uintptr_t>(context) % 10); }

int from_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

CUresult result_of(int number) { return static_cast<CUresult>(number); }

bool is_aligned(const void* data, std::uintptr_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }

}  // namespace

extern "C" {

RecordingDriver* recording_driver() {
  static RecordingDriver state;
  return &state;
}
// Contexts of this thread, the current one last.
std::vector<CUcontext>* fake_contexts() {
  thread_local std::vector<CUcontext> stack;
  return &stack;
}
int* fake_capture_mode() {
  thread_local int mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return &mode;
}

CUresult cuInit(unsigned) { return result_of(from_environment("RECORDING_INIT", 0)); }
CUresult cuDriverGetVersion(int* version) {
  *version = from_environment("RECORDING_VERSION", 12030);
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "CUDA_ERROR_FAKE", CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "a made-up error", CUDA_SUCCESS; }

CUresult cuDeviceGetCount(int* count) { return *count = 3, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int, CUdevice) { return std::strcpy(name, "Fake"), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  const bool old = device == 2;
  if (which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *value = 132;
  else if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = old ? 7 : 9;
  else if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *value = old ? 5 : 0;
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice device) {
  return *c = cuflash::test::context(10 + device), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
  return *c = fake_contexts()->empty() ? nullptr : fake_contexts()->back(), CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  if (fake_contexts()->empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return *device = device_of(fake_contexts()->back()), CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext c) {
  ++std::atomic_ref(recording_driver()->pushes);
  return fake_contexts()->push_back(c), CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* c) {
  ++std::atomic_ref(recording_driver()->pops);
  *c = fake_contexts()->back();
  return fake_contexts()->pop_back(), CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  recording_driver()->capture_modes.push_back(*fake_capture_mode());
  if (recording_driver()->load_result != 0) return result_of(recording_driver()->load_result);
  recording_driver()->loaded.emplace_back(static_cast<const char*>(code));
  *library = reinterpret_cast<CUlibrary>(recording_driver()->loaded.size());
  return CUDA_SUCCESS;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  if (std::strcmp(name, "cuflash_kernel") != 0) return CUDA_ERROR_INVALID_VALUE;
  return *kernel = reinterpret_cast<CUkernel>(library), CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (fake_contexts()->empty()) return CUDA_ERROR_INVALID_CONTEXT;
  return *function = reinterpret_cast<CUfunction>(kernel), CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) {
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  return recording_driver()->shared[{kernel, device}].push_back(value), CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, unsigned rank, void* data,
                                const std::uint64_t* extents, const std::uint64_t* strides, const unsigned* box,
                                const unsigned*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill) {
  ++std::atomic_ref(recording_driver()->encoded);
  if (rank != 4 || !is_aligned(map, 64) || !is_aligned(data, 16)) return CUDA_ERROR_INVALID_VALUE;
  if (recording_driver()->encode_result != 0) return result_of(recording_driver()->encode_result);
  FakeTensorMap content{data, {}, {}, {}, type};
  std::copy_n(extents, 4, content.extents), std::copy_n(strides, 3, content.strides), std::copy_n(box, 4, content.box);
  *map = {};
  std::memcpy(map, &content, sizeof content);
  return CUDA_SUCCESS;
}
#ifndef FAKE_WITHOUT_OPTIONAL_FUNCTIONS
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* data) {
  ++std::atomic_ref(recording_driver()->replaced);
  if (!is_aligned(map, 64) || !is_aligned(data, 16)) return CUDA_ERROR_INVALID_VALUE;
  if (recording_driver()->replace_result != 0) return result_of(recording_driver()->replace_result);
  std::memcpy(reinterpret_cast<char*>(map) + offsetof(FakeTensorMap, address), &data, sizeof data);
  return CUDA_SUCCESS;
}
#endif
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const int old = *fake_capture_mode();
  *fake_capture_mode() = *mode;
  return *mode = static_cast<CUstreamCaptureMode>(old), CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction, void** params, void** extra) {
  RecordingDriver& state = *recording_driver();
  const bool as_documented = extra[0] == kLaunchParamBufferPointer && extra[2] == kLaunchParamBufferSize && !extra[4];
  if (params || !as_documented || fake_contexts()->empty()) return CUDA_ERROR_INVALID_VALUE;
  if (state.launch_result != 0) return result_of(state.launch_result);
  if (state.launches.size() == state.launches.capacity()) return CUDA_SUCCESS;
  state.launches.push_back({device_of(fake_contexts()->back()), c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                            c->sharedMemBytes, c->hStream,
                            std::string(static_cast<char*>(extra[1]), *static_cast<size_t*>(extra[3]))});
  return CUDA_SUCCESS;
}

// Looked up when the library is opened, but not called by a launch.
#define NOT_CALLED(name) \
  CUresult name() { return CUDA_ERROR_NOT_INITIALIZED; }
NOT_CALLED(cuDeviceTotalMem_v2)
NOT_CALLED(cuCtxSynchronize)
NOT_CALLED(cuLibraryUnload)
NOT_CALLED(cuPointerGetAttributes)
NOT_CALLED(cuMemAlloc_v2)
NOT_CALLED(cuMemFree_v2)
NOT_CALLED(cuMemAllocAsync)
NOT_CALLED(cuMemFreeAsync)
NOT_CALLED(cuMemGetInfo_v2)
NOT_CALLED(cuMemsetD8Async)
NOT_CALLED(cuMemcpyHtoDAsync_v2)
NOT_CALLED(cuMemcpyDtoHAsync_v2)
NOT_CALLED(cuStreamCreate)
NOT_CALLED(cuStreamDestroy_v2)
NOT_CALLED(cuStreamSynchronize)
NOT_CALLED(cuStreamIsCapturing)
NOT_CALLED(cuStreamBeginCapture_v2)
NOT_CALLED(cuStreamEndCapture)
NOT_CALLED(cuGraphInstantiateWithFlags)
NOT_CALLED(cuGraphLaunch)
NOT_CALLED(cuGraphDestroy)
NOT_CALLED(cuGraphExecDestroy)

}  // extern "C"
