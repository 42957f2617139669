// What `cuflash info` says about CUDA on this machine.
#pragma once

#include "cli/commands.h"

namespace cuflash::cli {

void print_cuda(const InfoOptions& options);

}  // namespace cuflash::cli
