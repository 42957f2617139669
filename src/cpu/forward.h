// The forward pass: one task a (batch, query head, query tile), keys tile by tile with an online softmax.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void forward(const ForwardProblem& problem, const Execution& execution);
size_t forward_workspace_size(const ForwardProblem& problem, const Execution& execution);

// The same where decode.h has no part in it; of a cache, the sequences that it does not take.
void forward_panels(const ForwardProblem& problem, const Execution& execution);
size_t forward_panels_workspace_size(const ForwardProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
