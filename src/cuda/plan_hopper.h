// The kernels for Hopper: warpgroup products and tensor copies.
#pragma once

#include "cuda/plan.h"

namespace cuflash::cuda {

struct HopperPlan {
  const char* why_not;  // null: it serves
  ForwardPlan plan;
};
HopperPlan plan_hopper_forward(const ForwardProblem& problem, const Arch& arch);

// The plan with a config of the caller's choice, for sweeps over candidates; head sizes, type and options as the problem
// has them.
ForwardPlan plan_hopper_forward(const ForwardProblem& problem, const Arch& arch, const HopperForwardConfig& config);

// The main kernel of backward; whether it runs in order is not decided here.
struct HopperBackwardChoice {
  const char* why_not;  // null: it serves
  HopperBackwardConfig config;
};
HopperBackwardChoice choose_hopper_backward(const BackwardProblem& problem);

}  // namespace cuflash::cuda
