#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/driver/types.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"

namespace {

using namespace cuflash::cuda;
using cuflash::test::FakeGpu;
using cuflash::test::FakeLaunch;
using cuflash::test::FakeTensorMap;

constexpr int kDevices = 2;
constexpr CUresult kInvalidHandle{400}, kUnsupportedInCapture{900};

struct Block {
  size_t bytes;
  int device;
  bool from_pool;
};
struct FakeStream {
  int device;
  bool capturing;
};
struct FakeEvent {
  std::chrono::steady_clock::time_point time;
  bool recorded = false;
};

std::mutex mutex;
FakeGpu state;
std::map<CUdeviceptr, Block> blocks;
thread_local std::vector<CUcontext> contexts;  // the last one is current

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1); }
int current_device() {
  return contexts.empty() ? -1 : static_cast<int>(reinterpret_cast<std::uintptr_t>(contexts.back())) - 1;
}
bool is_aligned(const void* data, std::uintptr_t bytes) { return reinterpret_cast<std::uintptr_t>(data) % bytes == 0; }
FakeStream* of(CUstream stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* of(CUevent event) { return reinterpret_cast<FakeEvent*>(event); }

// Pointers may be null if there are no bytes to copy.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// The result of a call on this stream.
CUresult state_of(CUstream stream) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return stream && of(stream)->device != current_device() ? kInvalidHandle : CUDA_SUCCESS;
}
CUresult state_of_waiting(CUstream stream) {
  return stream && of(stream)->capturing ? kUnsupportedInCapture : state_of(stream);
}

CUresult allocate(CUdeviceptr* data, size_t bytes, bool from_pool) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  // NaN in every type of number, so that what is read before it is written shows even with a weight of 0.
  std::fill_n(static_cast<uint16_t*>(memory), (bytes + 1) / 2, uint16_t{0xffee});
  *data = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(mutex);
  blocks[*data] = {bytes, current_device(), from_pool};
  ++state.blocks, state.pool_blocks += from_pool;
  return CUDA_SUCCESS;
}
CUresult release(CUdeviceptr data) {
  const std::lock_guard lock(mutex);
  const auto block = blocks.find(data);
  if (block == blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  --state.blocks, state.pool_blocks -= block->second.from_pool;
  blocks.erase(block);
  std::free(reinterpret_cast<void*>(data));
  return CUDA_SUCCESS;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

extern "C" __attribute__((visibility("default"))) FakeGpu* fake_gpu() { return &state; }

FAKE cuInit(unsigned) { return CUDA_SUCCESS; }
FAKE cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
FAKE cuGetErrorName(CUresult, const char** name) { return *name = "FAKE_ERROR", CUDA_SUCCESS; }
FAKE cuGetErrorString(CUresult, const char** text) { return *text = "of the fake driver", CUDA_SUCCESS; }

FAKE cuDeviceGetCount(int* count) { return *count = kDevices, CUDA_SUCCESS; }
FAKE cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
FAKE cuDeviceGetName(char* name, int size, CUdevice) { return std::strncpy(name, "Fake", size), CUDA_SUCCESS; }
FAKE cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
           : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT   ? 132
                                                                 : 0;
  return CUDA_SUCCESS;
}
FAKE cuDeviceTotalMem_v2(size_t* bytes, CUdevice) { return *bytes = size_t{1} << 37, CUDA_SUCCESS; }
FAKE cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return *context = context_of(device), CUDA_SUCCESS;
}
FAKE cuCtxGetCurrent(CUcontext* context) {
  return *context = contexts.empty() ? nullptr : contexts.back(), CUDA_SUCCESS;
}
FAKE cuCtxGetDevice(CUdevice* device) {
  return *device = current_device(), *device < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
FAKE cuCtxPushCurrent_v2(CUcontext context) { return contexts.push_back(context), CUDA_SUCCESS; }
FAKE cuCtxPopCurrent_v2(CUcontext* context) { return *context = contexts.back(), contexts.pop_back(), CUDA_SUCCESS; }
FAKE cuCtxSynchronize() { return CUDA_SUCCESS; }

// The handles of a library, its kernel and its function are the text of the program.
FAKE cuLibraryLoadData(CUlibrary* library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  return *library = reinterpret_cast<CUlibrary>(strdup(static_cast<const char*>(code))), CUDA_SUCCESS;
}
FAKE cuLibraryUnload(CUlibrary library) { return std::free(library), CUDA_SUCCESS; }
FAKE cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char*) {
  return *kernel = reinterpret_cast<CUkernel>(library), CUDA_SUCCESS;
}
FAKE cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return *function = reinterpret_cast<CUfunction>(kernel), CUDA_SUCCESS;
}
// The limit of dynamic shared memory that was last set for each kernel and device.
static std::map<std::pair<const void*, int>, unsigned> max_shared_bytes;
FAKE cuKernelSetAttribute(CUfunction_attribute, int bytes, CUkernel kernel, CUdevice device) {
  const std::lock_guard lock(mutex);
  return max_shared_bytes[{kernel, device}] = static_cast<unsigned>(bytes), CUDA_SUCCESS;
}
static bool has_attribute(const CUlaunchConfig* config, CUlaunchAttributeID id) {
  for (unsigned n = 0; n < config->numAttrs; ++n)
    if (config->attrs[n].id == id && config->attrs[n].value[0] == 1) return true;
  return false;
}
FAKE cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  if (const CUresult result = state_of(config->hStream); result != CUDA_SUCCESS) return result;
  FakeLaunch launch{current_device(),
                    config->hStream,
                    reinterpret_cast<const char*>(function),
                    nullptr,
                    0,
                    config->gridDimX,
                    config->gridDimY,
                    config->gridDimZ,
                    config->blockDimX,
                    config->sharedMemBytes,
                    has_attribute(config, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
                    has_attribute(config, CU_LAUNCH_ATTRIBUTE_COOPERATIVE)};
  if (launch.cooperative && state.crowded) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  if (params && extra) return CUDA_ERROR_INVALID_VALUE;
  if (params) launch.params = params[0];
  if (extra) launch.params = extra[1], launch.params_size = *static_cast<size_t*>(extra[3]);
  {
    const std::lock_guard lock(mutex);
    const auto most = max_shared_bytes.find({function, launch.device});
    if (most != max_shared_bytes.end() && launch.shared_bytes > most->second) return CUDA_ERROR_INVALID_VALUE;
    ++state.launches;
  }
  if (state.on_launch) state.on_launch(launch);
  return CUDA_SUCCESS;
}

// Rejects what CUDA rejects, and what the library never passes.
FAKE cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, unsigned rank, void* data,
                            const std::uint64_t* extents, const std::uint64_t* strides, const unsigned* box,
                            const unsigned* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr std::uint64_t kLongest = std::uint64_t{1} << 32, kFarthest = std::uint64_t{1} << 40;
  bool right = rank == 4 && is_aligned(map, 64) && data && is_aligned(data, 16);
  const unsigned row_bytes = box[0] * (type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2);
  right &= swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || row_bytes == (swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 128);
  for (unsigned n = 0; n < rank; ++n)
    right &= extents[n] >= 1 && extents[n] <= kLongest && box[n] >= 1 && box[n] <= 256 && steps[n] == 1;
  for (unsigned n = 0; n + 1 < rank; ++n) right &= strides[n] >= 16 && strides[n] % 16 == 0 && strides[n] < kFarthest;
  *map = {};
  if (!right) return CUDA_ERROR_INVALID_VALUE;
  const unsigned element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8     ? 1
                                 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4
                                                                           : 2;
  FakeTensorMap content{
      data, {}, {}, box[1], box[2], box[0], element_bytes, swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : row_bytes};
  std::copy_n(extents, 4, content.extents), std::copy_n(strides, 3, content.strides);
  std::memcpy(map, &content, sizeof content);
  return CUDA_SUCCESS;
}
FAKE cuTensorMapReplaceAddress(CUtensorMap* map, void* data) {
  if (!is_aligned(map, 64) || !data || !is_aligned(data, 16)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(reinterpret_cast<char*>(map) + offsetof(FakeTensorMap, address), &data, sizeof data);
  return CUDA_SUCCESS;
}

FAKE cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** values, CUdeviceptr data) {
  const std::lock_guard lock(mutex);
  auto block = blocks.upper_bound(data);
  const bool known = block != blocks.begin() && (--block, data < block->first + block->second.bytes);
  for (unsigned n = 0; n < count; ++n) {
    if (which[n] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *static_cast<unsigned*>(values[n]) = known ? static_cast<unsigned>(CU_MEMORYTYPE_DEVICE) : 0;
    if (which[n] == CU_POINTER_ATTRIBUTE_IS_MANAGED) *static_cast<unsigned*>(values[n]) = 0;
    if (which[n] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *static_cast<int*>(values[n]) = known ? block->second.device : -2;
    if (which[n] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
      *static_cast<CUdeviceptr*>(values[n]) = known ? block->first : 0;
    if (which[n] == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *static_cast<size_t*>(values[n]) = known ? block->second.bytes : 0;
  }
  return CUDA_SUCCESS;
}
FAKE cuMemAlloc_v2(CUdeviceptr* data, size_t bytes) { return allocate(data, bytes, false); }
FAKE cuMemFree_v2(CUdeviceptr data) { return release(data); }
FAKE cuMemAllocAsync(CUdeviceptr* data, size_t bytes, CUstream stream) {
  const CUresult result = state_of(stream);
  return result == CUDA_SUCCESS ? allocate(data, bytes, true) : result;
}
FAKE cuMemFreeAsync(CUdeviceptr data, CUstream) { return release(data); }
FAKE cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = size_t{1} << 37, CUDA_SUCCESS; }
FAKE cuMemsetD8Async(CUdeviceptr data, unsigned char value, size_t bytes, CUstream stream) {
  return std::memset(reinterpret_cast<void*>(data), value, bytes), state_of(stream);
}
FAKE cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<void*>(to), from, bytes), state_of(stream);
}
FAKE cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(to, reinterpret_cast<void*>(from), bytes), state_of_waiting(stream);
}

FAKE cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), state_of(stream);
}

// Streams complete at once, so the host's clock measures them.
FAKE cuEventCreate(CUevent* event, unsigned) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return *event = reinterpret_cast<CUevent>(new FakeEvent), CUDA_SUCCESS;
}
FAKE cuEventDestroy_v2(CUevent event) { return delete of(event), CUDA_SUCCESS; }
FAKE cuEventRecord(CUevent event, CUstream stream) {
  return of(event)->time = std::chrono::steady_clock::now(), of(event)->recorded = true, state_of(stream);
}
FAKE cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  if (!of(begin)->recorded || !of(end)->recorded) return kInvalidHandle;
  *milliseconds = std::chrono::duration<float, std::milli>(of(end)->time - of(begin)->time).count();
  return CUDA_SUCCESS;
}

FAKE cuStreamCreate(CUstream* stream, unsigned) {
  if (current_device() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *stream = reinterpret_cast<CUstream>(new FakeStream{current_device(), false});
  return CUDA_SUCCESS;
}
FAKE cuStreamDestroy_v2(CUstream stream) { return delete of(stream), CUDA_SUCCESS; }
FAKE cuStreamSynchronize(CUstream stream) { return state_of_waiting(stream); }
FAKE cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = stream && of(stream)->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
FAKE cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  return of(stream)->capturing = true, CUDA_SUCCESS;
}
FAKE cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return of(stream)->capturing = false, *graph = reinterpret_cast<CUgraph>(&state), CUDA_SUCCESS;
}
FAKE cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
FAKE cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph, unsigned long long) {
  return *exec = reinterpret_cast<CUgraphExec>(&state), CUDA_SUCCESS;
}
FAKE cuGraphLaunch(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
FAKE cuGraphDestroy(CUgraph) { return CUDA_SUCCESS; }
FAKE cuGraphExecDestroy(CUgraphExec) { return CUDA_SUCCESS; }
