// The kernels for Hopper: warpgroup products and tensor copies.
#pragma once

#include <optional>

#include "cuda/plan.h"

namespace cuflash::cuda {

struct Sm90ForwardPlan {
  const char* why_not;  // null: it serves
  ForwardPlan plan;
};
Sm90ForwardPlan plan_sm90_forward(const ForwardProblem& problem, const Arch& arch, const tuned::Choice* choice);

// The kernels of backward between the first and the last ones.
struct Sm90BackwardChoice {
  const char* why_not;             // null: they serve
  Sm90BackwardConfig main;         // runs if dK or dV are wanted, or if it adds dQ
  std::optional<Sm90DqConfig> dq;  // one for dQ alone
  bool tuned;
};
Sm90BackwardChoice choose_sm90_backward(const BackwardProblem& problem, const Arch& arch, Reproducible reproducible,
                                        const tuned::Choice* choice);

}  // namespace cuflash::cuda
