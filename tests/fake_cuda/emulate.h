// A forward kernel in words: what its params ask for, computed by the CPU backend.
#pragma once

#include "params.h"

namespace cuflash::test {

void emulate(const ForwardParams& params);

}  // namespace cuflash::test
