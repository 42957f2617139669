// Problem and Plan become the structs that are sent to kernels.
#pragma once

#include "cuda/plan.h"
#include "params.h"

namespace cuflash::cuda {

// tile_counts: null, or three counters in device memory that are zero.
ForwardParams forward_params(const ForwardProblem& problem, const ForwardPlan& plan, uint64_t* tile_counts);

}  // namespace cuflash::cuda
