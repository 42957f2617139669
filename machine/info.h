// What this build is and what it finds on this machine.
#pragma once

#include <iosfwd>

#include "cli/commands.h"

namespace cuflash::cli {

void write_info(std::ostream& out, const InfoOptions& options);

}  // namespace cuflash::cli
