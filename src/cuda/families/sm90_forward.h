// The kernels for Hopper: warpgroup products and tensor copies.
#pragma once

#include <optional>

#include "cuda/plan.h"

namespace cuflash::cuda {

struct HopperPlan {
  const char* why_not;  // null: it serves
  ForwardPlan plan;
};
HopperPlan plan_hopper_forward(const ForwardProblem& problem, const Arch& arch, const tuned::Choice* choice);

// The kernels of backward between the first and the last ones.
struct HopperBackwardChoice {
  const char* why_not;               // null: they serve
  HopperBackwardConfig main;         // runs if dK or dV are wanted, or if it adds dQ
  std::optional<HopperDqConfig> dq;  // one for dQ alone
  bool tuned;
};
HopperBackwardChoice choose_hopper_backward(const BackwardProblem& problem, const Arch& arch, Reproducible reproducible,
                                            const tuned::Choice* choice);

}  // namespace cuflash::cuda
