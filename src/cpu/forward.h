// The forward pass: one task per (batch, query head, query tile), which visits key tiles with an online softmax.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void forward(const ForwardProblem& problem, const Execution& execution);
size_t forward_workspace_size(const ForwardProblem& problem, const Execution& execution);

// The panel path, without decode.h. For a cache, it computes only the sequences that decode does not take.
// tile_threads: the threads that tiles are cut for, those of the execution that sized the workspace.
void forward_panels(const ForwardProblem& problem, const Execution& execution, int64_t tile_threads);
size_t forward_panels_workspace_size(const ForwardProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
