// The backward pass. P is recomputed from Q, K and LSE; nothing of size Sq x Sk is kept.
//
// One pass over the scores: a task owns a range of keys of a KV head, walks it tile by tile, sums dK and dV of each tile
// over all queries and heads that see it, and adds its share of dQ to a buffer of its own. The shares are then added in
// the order of the ranges. Each sum has one fixed order, so the result is bitwise the same for any number of threads.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void backward(const BackwardProblem& problem, const Execution& execution);
size_t backward_workspace_size(const BackwardProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
