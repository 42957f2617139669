// What `cuflash check` and `cuflash check --forever` share.
#pragma once

#include "check/run/sweep.h"
#include "cli/commands.h"

namespace cuflash::cli {

// Throws where the device that is to be checked is not there.
check::Limits check_limits(const CheckOptions& options);

// Failures go to stderr, each with its reproduction; then a line for the whole on stdout. Its exit code.
int report_checked(const CheckOptions& options, uint64_t first, const check::SweepResult& result, double seconds);

// Problem after problem, until one fails, memory grows, a signal comes or the time is over. round: how many are checked
// between two looks at the memory; the first look is the one that later ones are held to.
int run_soak(const CheckOptions& options, uint64_t round = 1000);

}  // namespace cuflash::cli
