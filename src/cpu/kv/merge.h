// Merges two partial results of the same rows.
#pragma once

#include "problem/problem.h"

namespace cuflash::cpu {

void merge(const MergeProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
