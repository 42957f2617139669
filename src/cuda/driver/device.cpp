#include "cuda/driver/device.h"

#include <array>
#include <mutex>

#include "error.h"
#include "support/environment.h"
#include "tuned/table.h"

namespace cuflash::cuda {
namespace {

constexpr int kMaxDevices = 64;  // more than any machine has; CUDA_VISIBLE_DEVICES helps beyond that

int attribute(CUdevice handle, CUdevice_attribute which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, handle), "cuDeviceGetAttribute");
  return value;
}

DeviceState make(int ordinal) {
  const Driver& d = driver();
  DeviceState state;
  state.ordinal = ordinal;
  check(d.cuDeviceGet(&state.handle, ordinal), "cuDeviceGet");
  char name[256] = "";
  check(d.cuDeviceGetName(name, sizeof name, state.handle), "cuDeviceGetName");
  state.name = name;
  state.arch = arch_of(attribute(state.handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                       attribute(state.handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  state.num_sms = attribute(state.handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  // If compiling is forbidden, only packed kernels can run, which are those of the plans' own tables.
  state.tuned = &tuned::choices_of(environment().jit == "off" ? "" : tuned_name(state));
  check(d.cuDevicePrimaryCtxRetain(&state.primary, state.handle), "cuDevicePrimaryCtxRetain");
  return state;
}

}  // namespace

std::string tuned_name(const DeviceState& device) {
  return join(device.name, ", ", target_of(device.arch), ", ", device.num_sms, " multiprocessors");
}

int device_count() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

const DeviceState& device(int ordinal) {
  static std::array<std::once_flag, kMaxDevices> made;
  static std::array<DeviceState, kMaxDevices> states;
  if (ordinal < 0 || ordinal >= kMaxDevices) reject("device: ", ordinal, " is not in 0 ... ", kMaxDevices - 1);
  const size_t n = static_cast<size_t>(ordinal);
  std::call_once(made[n], [&] {
    if (ordinal >= device_count())
      reject("device: ", ordinal, " does not exist, CUDA shows ", device_count(), " to this process");
    states[n] = make(ordinal);
  });
  return states[n];
}

DeviceGuard::DeviceGuard(const DeviceState& wanted) : state_(wanted) {
  CUcontext context = nullptr;
  CUdevice current = 0;
  // Querying the device without a context is an error, which tools that watch the driver report.
  const bool has_context = driver().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr;
  if (has_context && context == wanted.primary) return;
  if (has_context && driver().cuCtxGetDevice(&current) == CUDA_SUCCESS && current == wanted.handle) return;
  check(driver().cuCtxPushCurrent(wanted.primary), "cuCtxPushCurrent");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  CUcontext popped;
  if (pushed_) driver().cuCtxPopCurrent(&popped);
}

}  // namespace cuflash::cuda
