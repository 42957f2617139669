// What a call over a cache does before it attends: new rows are turned and written into the cache, queries are turned.
#pragma once

#include "checked.h"
#include "problem/problem.h"

namespace cuflash::cpu {

// Where turned queries go: [batch][head][query][dim], packed [query][head][dim]. Without a rotary embedding there are none.
Rows rotated_queries(const CacheProblem& problem, void* memory);
Checked rotated_queries_size(const CacheProblem& problem);  // in bytes

void append_and_rotate(const CacheProblem& problem, const Rows& rotated, const Execution& execution);

}  // namespace cuflash::cpu
