#include "cuda/jit/kernel_cache.h"

#include <chrono>
#include <mutex>

#include "cuda/jit/kernel_table.h"
#include "cuda/jit/program.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

// Loading code may allocate, which CUDA forbids to a thread that captures a graph unless it relaxes the mode: nothing
// that is allocated here is part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

const char* words_of(Origin origin) {
  switch (origin) {
    case Origin::pack: return "from the pack";
    case Origin::disk: return "from the disk cache";
    case Origin::compiler: return "just compiled";
  }
  return "";
}

struct Loaded {
  std::mutex mutex;
  std::vector<LoadedKernel> kernels;
};
Loaded& loaded() {
  static Loaded& instance = *new Loaded;  // never destroyed, like the table
  return instance;
}

// Loads a kernel, for the life of the process.
CUkernel load(const Program& program) {
  const Driver& d = driver();
  const auto start = std::chrono::steady_clock::now();
  const Binary binary = binaries().get(program);
  CUlibrary library = nullptr;
  const CUresult result = d.cuLibraryLoadData(&library, binary.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU)
    throw FlashAttentionError(
        CUFLASH_NO_DEVICE,
        join("kernel: ", program.name, ", ", words_of(binary.origin), ", is not accepted by the driver (CUDA ",
             version_text(d.version),
             "); a compiler of a newer CUDA than the driver's may have made it: update the driver, or use its NVRTC"));
  check(result, "cuLibraryLoadData");
  CUkernel kernel = nullptr;
  check(d.cuLibraryGetKernel(&kernel, library, kEntryName), "cuLibraryGetKernel");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::lock_guard lock(loaded().mutex);
  loaded().kernels.push_back({program.name, binary.origin, seconds.count()});
  return kernel;
}

}  // namespace

std::vector<LoadedKernel> loaded_kernels() {
  const std::lock_guard lock(loaded().mutex);
  return loaded().kernels;
}

CUkernel cached_kernel(const KernelKey& key, const DeviceState& device, int shared_bytes) {
  static KernelTable& table = *new KernelTable;  // never destroyed: calls may outlive static objects
  return table.get(key, device.ordinal, [&](CUkernel& kernel) {
    const Driver& d = driver();
    const RelaxedCapture relaxed;
    if (!kernel) kernel = load(program_of(key));
    check(d.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes, kernel, device.handle),
          "cuKernelSetAttribute");
    // Loads the code onto the device now, not during the first launch.
    CUfunction function = nullptr;
    check(d.cuKernelGetFunction(&function, kernel), "cuKernelGetFunction");
  });
}

}  // namespace cuflash::cuda
