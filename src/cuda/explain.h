// How CUDA computes a problem and why, in lines of text: backend, kernels, config, grid, workspace; or why it cannot.
#pragma once

#include <string>

#include "cuda/driver/arch.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// Explains the plan for the device that holds the tensors.
std::string explain(const ForwardProblem& problem, const Execution& execution);
std::string explain(const BackwardProblem& problem, const Execution& execution);
std::string explain(const CacheProblem& problem, const Execution& execution);

// Explains the plan for any device of an architecture; needs no GPU.
std::string explain(const ForwardProblem& problem, const Execution& execution, const Arch& arch);
std::string explain(const BackwardProblem& problem, const Execution& execution, const Arch& arch);
std::string explain(const CacheProblem& problem, const Execution& execution, const Arch& arch);

}  // namespace cuflash::cuda
