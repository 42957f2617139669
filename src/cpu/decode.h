// The forward pass where few queries meet many keys: one token, a few speculative ones, the heads of a group. All rows of
// queries that share a key/value head are computed together, K and V are read once and where they lie, and long sequences
// are cut into ranges of keys whose partial results are merged in order.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void decode(const ForwardProblem& problem, const Execution& execution);
size_t decode_workspace_size(const ForwardProblem& problem, const Execution& execution);
bool decode_multiplies_bf16(const Problem& problem);  // without widening it

}  // namespace cuflash::cpu
