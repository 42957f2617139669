// GPUs: the properties of a device that a plan needs, and which device is current during a call.
#pragma once

#include <string>

#include "cuda/driver/arch.h"
#include "cuda/driver/driver.h"
#include "tuned/choice.h"

namespace cuflash::cuda {

struct DeviceState {
  int ordinal = 0;
  CUdevice handle = 0;
  CUcontext primary = nullptr;  // retained for the life of the process
  Arch arch;
  int num_sms = 0;
  std::string name;
  const tuned::Choices* tuned = nullptr;  // choices that were measured on this kind of device
};
// The name under which tuned choices are kept for a device: "NVIDIA H200, sm_90a, 132 multiprocessors".
std::string tuned_name(const DeviceState& device);

int device_count();
// Initialised at the first use of a device, for all threads. Throws for one that does not exist or is too old.
const DeviceState& device(int ordinal);

// Makes a device current for a scope. If a context of that device is current already, it stays.
class DeviceGuard {
 public:
  explicit DeviceGuard(int ordinal) : DeviceGuard(device(ordinal)) {}
  explicit DeviceGuard(const DeviceState& wanted);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const DeviceState& state() const { return state_; }

 private:
  const DeviceState& state_;
  bool pushed_ = false;
};

}  // namespace cuflash::cuda
