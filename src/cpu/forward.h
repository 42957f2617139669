// The forward pass: one task a (batch, query head, query tile), keys tile by tile with an online softmax.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void forward(const ForwardProblem& problem, const Execution& execution);
size_t forward_workspace_size(const ForwardProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
