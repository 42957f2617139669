// Computes a forward problem with few queries as one over a KV cache that holds all keys. The kernels of sm90_kv take
// the heads of a group as rows of one tile, so that keys are read once for all of them, and split the keys.
#pragma once

#include "cuda/families/family.h"

namespace cuflash::cuda {

// Whether the kernels over a cache support the problem and are faster for it.
bool is_worth_kv(const ForwardProblem& problem, const Arch& arch);

KvPlan plan_by_kv(const ForwardProblem& problem, const PlanTarget& target);
void params_by_kv(const ForwardProblem& problem, const ForwardPlan& plan, const LaunchContext& context,
                  KernelParams& params);

}  // namespace cuflash::cuda
