// The device that tests run on: the CPU, or with CUFLASH_TEST_DEVICE=cuda the first GPU. There every call goes through
// check/memory/device.h, so that no test is written twice. Without a GPU these tests are skipped, and say why.
#pragma once

#include <cuflash/flash_attention.h>

#include "check/cases/case.h"
#include "check/memory/device.h"

namespace cuflash::test {

Device test_device();
inline bool on_cuda() { return test_device() == Device::cuda; }

// The limits of random cases on that device. On CUDA they have few head sizes, since each pair needs other kernels.
check::Limits test_limits(int64_t work = check::Limits{}.work);

// The library's calls on that device. Backward is deterministic, so that results can be compared bit by bit.
inline void run_forward(const Attention& attention, const ForwardOutputs& outputs, const Execution& execution = {}) {
  check::forward(test_device(), attention, outputs, execution);
}
inline void run_backward(const Attention& attention, const BackwardTensors& tensors, Execution execution = {}) {
  if (on_cuda()) execution.deterministic = true;
  check::backward(test_device(), attention, tensors, execution);
}

}  // namespace cuflash::test
