// The kernels for Hopper: warpgroup products and tensor copies.
#pragma once

#include "cuda/plan.h"

namespace cuflash::cuda {

struct HopperPlan {
  const char* why_not;  // null: it serves
  ForwardPlan plan;
};
HopperPlan plan_hopper_forward(const ForwardProblem& problem, const Arch& arch, const tuned::Choice* choice);

// The main kernel of backward; whether it runs in order is not decided here.
struct HopperBackwardChoice {
  const char* why_not;  // null: it serves
  HopperBackwardConfig config;
  bool tuned;
};
HopperBackwardChoice choose_hopper_backward(const BackwardProblem& problem, const Arch& arch,
                                            const tuned::Choice* choice);

}  // namespace cuflash::cuda
