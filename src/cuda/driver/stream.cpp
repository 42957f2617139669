#include "cuda/driver/stream.h"

#include "cuda/driver/driver.h"
#include "error.h"

namespace cuflash::cuda {

static CUstream handle(void* stream) { return static_cast<CUstream>(stream); }
static CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

void require_no_capture(const char* argument, void* stream) {
  CUstreamCaptureStatus status{};
  check(driver().cuStreamIsCapturing(handle(stream), &status), "cuStreamIsCapturing");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE)
    reject(argument, ": waits for the stream, which is being captured into a graph; leave it unset during capture");
}

void zero(void* device_memory, size_t bytes, void* stream) {
  check(driver().cuMemsetD8Async(address(device_memory), 0, bytes, handle(stream)), "cuMemsetD8Async");
}

void copy_to_host(void* host, const void* device_memory, size_t bytes, void* stream) {
  check(driver().cuMemcpyDtoHAsync(host, address(device_memory), bytes, handle(stream)), "cuMemcpyDtoHAsync");
}

void synchronize(void* stream) { check(driver().cuStreamSynchronize(handle(stream)), "cuStreamSynchronize"); }

}  // namespace cuflash::cuda
