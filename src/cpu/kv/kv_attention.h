// Attention over a KV cache: appends and rotates the new rows, rotates the queries, and runs the forward pass over the
// keys in the cache.
#pragma once

#include <cstddef>
#include <string>

#include "problem/problem.h"

namespace cuflash::cpu {

void attend_cache(const CacheProblem& problem, const Execution& execution);
size_t cache_workspace_size(const CacheProblem& problem, const Execution& execution);
std::string describe_cache(const CacheProblem& problem);

}  // namespace cuflash::cpu
