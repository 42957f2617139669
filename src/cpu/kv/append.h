// The prologue of a call over a KV cache: rotates new rows and writes them into the cache, and rotates the queries.
#pragma once

#include "checked.h"
#include "problem/problem.h"

namespace cuflash::cpu {

// The buffer of rotated queries: [batch][head][query][dim], packed [query][head][dim]. Empty without a rotary
// embedding.
Rows rotated_queries(const CacheProblem& problem, void* memory);
Checked rotated_queries_size(const CacheProblem& problem);  // bytes

void append_and_rotate(const CacheProblem& problem, const Rows& rotated, const Execution& execution);

}  // namespace cuflash::cpu
