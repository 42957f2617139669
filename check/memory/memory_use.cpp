#include "check/memory/memory_use.h"

#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <fstream>
#include <stdexcept>

#include "cuda/driver/device.h"
#include "error.h"

namespace cuflash::check {
namespace {

// Free memory between used blocks stays resident unless it is returned here.
int64_t resident_bytes() {
#if defined(__GLIBC__)
  ::malloc_trim(0);
#endif
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) throw std::runtime_error("/proc/self/statm does not say how much memory is in use");
  return resident * int64_t{::sysconf(_SC_PAGESIZE)};
}

int64_t device_bytes() {
  const cuda::DeviceGuard guard(0);
  size_t free = 0, total = 0;
  cuda::check(cuda::driver().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return static_cast<int64_t>(total - free);
}

}  // namespace

// Without this, glibc keeps up to 64 MiB for each thread that has ever freed a large block.
void return_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kKept = 128 << 10;  // glibc's initial value
  ::mallopt(M_TRIM_THRESHOLD, kKept);
#endif
}

MemoryUse memory_use(Device device) { return {resident_bytes(), device == Device::cuda ? device_bytes() : 0}; }

std::string growth_beyond(int64_t most, const MemoryUse& before, const MemoryUse& now) {
  const auto text = [&](const char* which, int64_t then, int64_t later) {
    return join(which, " grew by ", later - then, " bytes, from ", then, " to ", later, "; ", most, " are allowed");
  };
  if (now.host - before.host > most) return text("resident memory", before.host, now.host);
  if (now.device - before.device > most) return text("device memory", before.device, now.device);
  return "";
}

}  // namespace cuflash::check
