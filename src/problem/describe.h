// Validates the arguments and builds the Problem. Nothing else validates, and no output is written before this has
// succeeded.
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"
#include "problem/snapshot.h"

namespace cuflash {

// Lengths in host memory are copied, and the problem points into `copies`. Lengths in device memory are not read; see
// cuda/launch/lengths.h.
ForwardProblem describe(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, Memory memory,
                        Snapshot& copies);
BackwardProblem describe(const cuflash_attention& attention, const cuflash_backward_tensors& tensors, Memory memory,
                         Snapshot& copies);
Execution describe(const cuflash_execution& execution);

}  // namespace cuflash
