// Emulates kernels: the CPU backend computes the problem of their params. Each kernel of a backward call computes all
// of it.
#pragma once

#include "backward_params.h"
#include "mask_params.h"
#include "params.h"

namespace cuflash::test {

void emulate(const ForwardParams& params);
void emulate(const BackwardParams& params);
void emulate(const MaskSummaryParams& params);

}  // namespace cuflash::test
