// The CUDA backend: device -> plan -> params -> launches, on the device that holds the tensors. A call whose kernels
// are loaded allocates nothing, waits for nothing and formats nothing; tile_stats and check_lengths are the options
// that wait.
#pragma once

#include <cstddef>

#include "cuda/plan/plan.h"
#include "problem/mask_shape.h"

namespace cuflash::cuda {

void forward(const ForwardProblem& problem, const Execution& execution);
void backward(const BackwardProblem& problem, const Execution& execution);
void attend_cache(const CacheProblem& problem, const Execution& execution);
void merge(const MergeProblem& problem, const Execution& execution);
void summarize(const MaskProblem& problem, const Execution& execution);
size_t forward_workspace_size(const ForwardProblem& problem, const Execution& execution);
size_t backward_workspace_size(const BackwardProblem& problem, const Execution& execution);
size_t cache_workspace_size(const CacheProblem& problem, const Execution& execution);

inline Reproducible reproducible(const Execution& e) { return e.deterministic ? Reproducible::yes : Reproducible::no; }

}  // namespace cuflash::cuda
