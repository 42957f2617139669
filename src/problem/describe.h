// Arguments become a validated Problem here, and nowhere else. Nothing is written before this has succeeded.
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"

namespace cuflash {

ForwardProblem describe(const cuflash_attention& attention, const cuflash_forward_outputs& outputs);
BackwardProblem describe(const cuflash_attention& attention, const cuflash_backward_tensors& tensors);
Execution describe(const cuflash_execution& execution);

}  // namespace cuflash
