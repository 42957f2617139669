// Two partial results of the same rows become one.
#pragma once

#include "problem/problem.h"

namespace cuflash::cpu {

void merge(const MergeProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
