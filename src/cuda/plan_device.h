// The plan of a problem on a device, with the choices that were measured there.
#pragma once

#include "cuda/driver/device.h"
#include "cuda/plan/plan.h"

namespace cuflash::cuda {

inline ForwardPlan plan_of(const ForwardProblem& p, const DeviceState& device, bool has_workspace = true,
                           SplitReduction reduction = SplitReduction::exchange) {
  return plan_forward(p, device.arch, kernel_preference(), choice_for(*device.tuned, tuned::Direction::forward, p),
                      {device.num_sms, has_workspace, reduction});
}
inline BackwardPlan plan_of(const BackwardProblem& p, const DeviceState& device, Reproducible reproducible) {
  // Summing in order takes a different kernel from the one that was tuned.
  const tuned::Choice* choice =
      reproducible == Reproducible::yes ? nullptr : choice_for(*device.tuned, tuned::Direction::backward, p);
  return plan_backward(p, device.arch, reproducible, kernel_preference(), choice);
}
inline KvPlan plan_of(const CacheProblem& p, const DeviceState& device,
                      SplitReduction reduction = SplitReduction::exchange, bool has_workspace = true) {
  return plan_kv(p, device.arch, device.num_sms, kernel_preference(),
                 choice_for(*device.tuned, tuned::Direction::decode, p), reduction, has_workspace);
}

}  // namespace cuflash::cuda
