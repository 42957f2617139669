#pragma once

#include "cuda/driver/device.h"

namespace cuflash::test {

// The fake GPU has few SMs as long as this exists, so that a few tiles are many.
class FewSms {
 public:
  static constexpr int kSms = 16;
  FewSms() { num_sms() = kSms; }
  ~FewSms() { num_sms() = all_; }
  FewSms(const FewSms&) = delete;
  FewSms& operator=(const FewSms&) = delete;

 private:
  static int& num_sms() { return const_cast<cuda::DeviceState&>(cuda::device(0)).num_sms; }
  const int all_ = num_sms();
};

}  // namespace cuflash::test
