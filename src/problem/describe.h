// Arguments become a validated Problem here, and nowhere else. Nothing is written before this has succeeded.
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"
#include "problem/snapshot.h"

namespace cuflash {

// Lengths in host memory are copied: the problem points to `copies`. Those in the memory of a CUDA device are not read;
// see cuda/lengths.h.
ForwardProblem describe(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, Memory memory,
                        Snapshot& copies);
BackwardProblem describe(const cuflash_attention& attention, const cuflash_backward_tensors& tensors, Memory memory,
                         Snapshot& copies);
Execution describe(const cuflash_execution& execution);

}  // namespace cuflash
