// The backward pass. It recomputes P from Q, K and LSE and stores nothing of size Sq x Sk.
//
// It makes one pass over the scores. A task owns a range of keys of a KV head and processes it tile by tile. It
// accumulates dK and dV of each key tile over all queries and heads that see the tile, and adds its share of dQ to a
// private buffer. A second pass adds the shares in the order of the ranges. Every sum has one fixed order, so the
// result is bitwise the same for any number of threads.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void backward(const BackwardProblem& problem, const Execution& execution);
size_t backward_workspace_size(const BackwardProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
