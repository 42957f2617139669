// Which backend computes a problem: CUDA for device memory, the CPU for host memory. locate.h finds out which it is.
#pragma once

#include <cuflash/cuflash.h>

#include <cstddef>
#include <string>

#include "cuda/driver/arch.h"
#include "problem/mask_shape.h"
#include "problem/problem.h"

namespace cuflash {

// The function that computes a problem.
template <class P>
using Compute = void (*)(const P& problem, const Execution& execution);
Compute<ForwardProblem> backend_for(const ForwardProblem& problem);
Compute<BackwardProblem> backend_for(const BackwardProblem& problem);
Compute<CacheProblem> backend_for(const CacheProblem& problem);
Compute<MergeProblem> backend_for(const MergeProblem& problem);
Compute<MaskProblem> backend_for(const MaskProblem& problem);

size_t workspace_size(const ForwardProblem& problem, const Execution& execution);
size_t workspace_size(const BackwardProblem& problem, const Execution& execution);
size_t workspace_size(const CacheProblem& problem, const Execution& execution);

// Explains the problem, which backend and kernel compute it and why, and why the other backend does not.
std::string explain(const ForwardProblem& problem, const Execution& execution);
std::string explain(const BackwardProblem& problem, const Execution& execution);
std::string explain(const CacheProblem& problem, const Execution& execution);

// Explains the problem for any CUDA device of an architecture; needs no GPU.
std::string explain(const ForwardProblem& problem, const Execution& execution, const cuda::Arch& arch);
std::string explain(const BackwardProblem& problem, const Execution& execution, const cuda::Arch& arch);
std::string explain(const CacheProblem& problem, const Execution& execution, const cuda::Arch& arch);

// Explains the problem, and why no device can compute it.
std::string explain_none(const ForwardProblem& problem, const char* why);
std::string explain_none(const BackwardProblem& problem, const char* why);
std::string explain_none(const CacheProblem& problem, const char* why);

}  // namespace cuflash
