#include <iostream>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"

namespace cuflash::cli {

int run_info(const InfoOptions& options) {
  try {
    machine::write_info(std::cout, options);
  } catch (const machine::InfoError& error) {
    throw UsageError(error.what());
  }
  return kExitOk;
}

}  // namespace cuflash::cli
