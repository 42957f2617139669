// Batch and sequence lengths of a problem: dense, padded (seqlens) or packed (cu_seqlens).
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"

namespace cuflash {

// Fills batch, len_q, len_k and the length arrays. The lengths are read: they are host memory.
void describe_lengths(Problem& p, const cuflash_attention& a);

}  // namespace cuflash
