// Attention over a KV cache: new rows are turned and written, queries are turned, and the forward pass reads keys where
// the cache has them.
#pragma once

#include <cstddef>
#include <string>

#include "problem/problem.h"

namespace cuflash::cpu {

void attend_cache(const CacheProblem& problem, const Execution& execution);
size_t cache_workspace_size(const CacheProblem& problem, const Execution& execution);
std::string describe_cache(const CacheProblem& problem);

}  // namespace cuflash::cpu
