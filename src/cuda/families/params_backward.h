// The params of the backward kernels, made from a problem, its plan and its workspace.
#pragma once

#include "backward_params.h"
#include "cuda/plan/plan.h"

namespace cuflash::cuda {

// tile_counts: null, or three zeroed counters in device memory.
BackwardParams backward_params(const BackwardProblem& problem, const BackwardPlan& plan, void* workspace,
                               uint64_t* tile_counts);

}  // namespace cuflash::cuda
