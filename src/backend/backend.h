// Which backend computes a problem. CUDA for device memory, the CPU for host memory; every "why not" is kept for explain.
#pragma once

#include <cstddef>
#include <string>

#include "problem/problem.h"

namespace cuflash {

struct Choice {
  Device device;
  std::string reason;
};

// Throws where the device asked for cannot serve.
Choice choose(const Execution& execution);

void run(const ForwardProblem& problem, const Execution& execution);
void run(const BackwardProblem& problem, const Execution& execution);
size_t workspace_size(const ForwardProblem& problem, const Execution& execution);
size_t workspace_size(const BackwardProblem& problem, const Execution& execution);

// The problem, the backend and kernel it gets, and why; or why none.
std::string explain(const ForwardProblem& problem, const Execution& execution);
std::string explain(const BackwardProblem& problem, const Execution& execution);

}  // namespace cuflash
