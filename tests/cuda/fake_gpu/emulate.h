// Kernels in words: what their params ask for, computed by the CPU backend. Each of the kernels of a backward call does
// all of it.
#pragma once

#include "backward_params.h"
#include "params.h"

namespace cuflash::test {

void emulate(const ForwardParams& params);
void emulate(const BackwardParams& params);

}  // namespace cuflash::test
