// Batch and sequence lengths of a problem: dense, padded (seqlens) or packed (cu_seqlens).
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"

namespace cuflash {

// Fills batch, len_q, len_k and the length arrays. Lengths in host memory are checked one by one; those in device memory
// are not read, so packed ones come with max_seqlen_q and max_seqlen_k.
void describe_lengths(Problem& p, const cuflash_attention& a);

}  // namespace cuflash
