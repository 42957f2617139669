// The forward pass for few queries against many keys: one token, a few speculative ones, the heads of a group. All
// query rows that share a KV head are computed together, K and V are read once and in place, and long sequences are
// split into ranges of keys (split-KV) whose partial results are merged in order.
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

// splits: the number of splits of every sequence; 0 chooses it by the length of the sequence. For a cache, only the
// sequences for which takes_decode is true are computed.
void decode(const ForwardProblem& problem, const Execution& execution, int64_t splits = 0);
size_t decode_workspace_size(const ForwardProblem& problem, const Execution& execution, int64_t splits = 0);

}  // namespace cuflash::cpu
