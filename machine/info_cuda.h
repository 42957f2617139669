// Prints the part of `cuflash info` that describes CUDA on this machine.
#pragma once

#include <iosfwd>

#include "machine/info.h"

namespace cuflash::machine {

void write_cuda(std::ostream& out, const InfoOptions& options);

}  // namespace cuflash::machine
