// Makes the summary of a mask tensor in host memory.
#pragma once

#include "problem/mask_shape.h"

namespace cuflash::cpu {

// words [0, count): bit n is whether byte n of the mask is not 0; bits beyond `keys` are 0. No byte beyond `keys` is
// read.
void pack_mask(const uint8_t* bytes, int64_t keys, uint32_t* words, int64_t count);

void summarize_mask(const MaskProblem& problem, const Execution& execution);

}  // namespace cuflash::cpu
