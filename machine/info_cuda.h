// What `cuflash info` says about CUDA on this machine.
#pragma once

#include <iosfwd>

#include "cli/commands.h"

namespace cuflash::cli {

void write_cuda(std::ostream& out, const InfoOptions& options);

}  // namespace cuflash::cli
