#include "cuda/driver/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>

#include "error.h"

namespace cuflash::cuda {
namespace {

constexpr const char* kNames[] = {"libcuda.so.1", "libcuda.so"};

[[noreturn]] void unusable(const std::string& why) {
  throw FlashAttentionError(CUFLASH_NO_DEVICE, join("device: cuda needs an NVIDIA driver for CUDA ",
                                                    version_text(kMinDriverVersion), " or newer, but ", why));
}

void* open_libcuda(int flags) {
  for (const char* name : kNames)
    if (void* handle = ::dlopen(name, flags)) return handle;
  return nullptr;
}

// The handle is never closed: libcuda does not survive being unloaded, and other code may hold it, too.
Driver load(void* handle) {
  Driver d{};
  const auto find = [&](auto& function, const char* name) {
    void* symbol = ::dlsym(handle, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    return symbol != nullptr;
  };
#define CUFLASH_FIND(name, symbol, ...) \
  if (!find(d.name, #symbol) && d.missing.empty()) d.missing = #symbol;
#define CUFLASH_FIND_OPTIONAL(name, symbol, ...) find(d.name, #symbol);
  CUFLASH_DRIVER_FUNCTIONS(CUFLASH_FIND)
  CUFLASH_OPTIONAL_DRIVER_FUNCTIONS(CUFLASH_FIND_OPTIONAL)
#undef CUFLASH_FIND
#undef CUFLASH_FIND_OPTIONAL
  if (d.cuDriverGetVersion) d.cuDriverGetVersion(&d.version);
  Dl_info info;
  if (d.cuInit && ::dladdr(reinterpret_cast<void*>(d.cuInit), &info) && info.dli_fname) d.path = info.dli_fname;
  return d;
}

// The table of functions, one for the whole process.
const Driver* table(void* handle) {
  static const Driver instance = load(handle);
  return &instance;
}

const Driver& initialised() {
  void* handle = open_libcuda(RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = ::dlerror();
    unusable(join("neither ", kNames[0], " nor ", kNames[1], " can be opened (", reason ? reason : "no reason given",
                  "); use device auto or cpu with host memory, or install the driver"));
  }
  const Driver& d = *table(handle);
  if (d.version < kMinDriverVersion || !d.missing.empty())
    unusable(join(d.path, " is for CUDA ", version_text(d.version),
                  d.missing.empty() ? "" : " and has no function " + d.missing, "; install a newer driver"));
  if (const CUresult result = d.cuInit(0); result != CUDA_SUCCESS) {
    const char* words = nullptr;
    d.cuGetErrorString(result, &words);
    unusable(join(d.path, " cannot be initialised: ", words ? words : "unknown error", " (cuInit returned ",
                  static_cast<int>(result), "); use device auto or cpu with host memory"));
  }
  return d;
}

// How many libraries this process has loaded so far.
unsigned long long libraries_added() {
  unsigned long long added = 0;
  const auto first = [](dl_phdr_info* info, size_t, void* out) {
    *static_cast<unsigned long long*>(out) = info->dlpi_adds;
    return 1;
  };
  ::dl_iterate_phdr(first, &added);
  return added;
}

}  // namespace

const Driver& driver() {
  static const Driver& instance = initialised();  // if it throws, the next call tries again
  return instance;
}

const Driver* loaded_driver() {
  static std::atomic<const Driver*> found{nullptr};
  if (const Driver* d = found.load(std::memory_order_acquire)) return d;
  // The number of loaded libraries at the last check that did not find libcuda: while it is the same, libcuda is not
  // loaded.
  static std::atomic<unsigned long long> added_without{0};
  const unsigned long long added = libraries_added();
  if (added == added_without.load(std::memory_order_relaxed)) return nullptr;
  if (void* handle = open_libcuda(RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
    found.store(table(handle), std::memory_order_release);
    return found.load(std::memory_order_relaxed);
  }
  added_without.store(added, std::memory_order_relaxed);
  return nullptr;
}

bool driver_is_loaded() { return loaded_driver() != nullptr; }

void check_failed(CUresult result, const char* what) {
  const Driver& d = driver();
  const char *name = nullptr, *words = nullptr;
  d.cuGetErrorName(result, &name);
  d.cuGetErrorString(result, &words);
  const bool gone = result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_NO_DEVICE;
  const cuflash_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? CUFLASH_OUT_OF_MEMORY
                                : gone                             ? CUFLASH_NO_DEVICE
                                                                   : CUFLASH_INTERNAL;
  throw FlashAttentionError(status, join(what, ": CUDA says ", name ? name : "an unknown error", " (",
                                         words ? words : "no description", ", ", static_cast<int>(result), ")"));
}

std::string version_text(int version) { return join(version / 1000, ".", version % 1000 / 10); }

}  // namespace cuflash::cuda
