// The backward pass. P is recomputed from Q, K and LSE; nothing of size Sq x Sk is kept.
//
// Every output element belongs to exactly one task, which sums its terms in a fixed order. So the result is bitwise the
// same for any number of threads, without atomics; the price is that scores are computed once for dK and dV and again for
// dQ (and for dBias).
#pragma once

#include <cstddef>

#include "problem/problem.h"

namespace cuflash::cpu {

void backward(const BackwardProblem& problem, const Execution& execution);
size_t backward_workspace_size(const BackwardProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
