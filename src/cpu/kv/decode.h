// The forward pass where few queries meet many keys: one token, a few speculative ones, the heads of a group. All rows of
// queries that share a key/value head are computed together, K and V are read once and where they lie, and long sequences
// are cut into ranges of keys whose partial results are merged in order.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

// splits: into how many ranges of keys every sequence is cut; 0: as many as its length is worth. Of a cache, only the
// sequences that takes_decode are computed.
void decode(const ForwardProblem& problem, const Execution& execution, int64_t splits = 0);
size_t decode_workspace_size(const ForwardProblem& problem, const Execution& execution, int64_t splits = 0);
bool decode_multiplies_bf16(const Problem& problem);  // without widening it

}  // namespace cuflash::cpu
