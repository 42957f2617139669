// Functions that `cuflash check` and `cuflash check --forever` share.
#pragma once

#include "check/run/sweep.h"
#include "cli/arguments/commands.h"

namespace cuflash::cli {

// Throws if the device to check does not exist.
check::Limits check_limits(const CheckOptions& options);

// Prints each failure with its reproduction to stderr, then a summary to stdout. Returns the exit code.
int report_checked(const CheckOptions& options, uint64_t first, const check::SweepResult& result, double seconds);

// Checks problems until one fails, memory grows, a signal arrives or the time is up. round: problems between two
// measurements of the memory; later measurements are compared with the first.
int run_soak(const CheckOptions& options, uint64_t round = 1000);

}  // namespace cuflash::cli
