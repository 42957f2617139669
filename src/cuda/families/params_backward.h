// A problem of backward, its plan and its workspace become what is sent to the kernels.
#pragma once

#include "backward_params.h"
#include "cuda/plan.h"

namespace cuflash::cuda {

// tile_counts: null, or three counters in device memory that are zero.
BackwardParams backward_params(const BackwardProblem& problem, const BackwardPlan& plan, void* workspace,
                               uint64_t* tile_counts);
// For a plan with kernels for Hopper. dq_ctas: of the one for dQ alone, where it runs.
Sm90BackwardParams sm90_backward_params(const BackwardProblem& problem, const BackwardPlan& plan, int64_t dq_ctas,
                                        void* workspace, uint64_t* tile_counts);

}  // namespace cuflash::cuda
