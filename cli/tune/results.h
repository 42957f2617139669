// The times of `cuflash tune` as a file, from which tools/tile_tables.py makes built-in tables.
#pragma once

#include <string>
#include <vector>

#include "cli/tune/search.h"

namespace cuflash::cli {

// Lines of comments with the command, the device, the version, the hash of the kernels' sources and the date; then CSV with
// one row per candidate.
std::string tune_csv(const std::vector<TuneOutcome>& outcomes, const std::string& command, const std::string& device);

}  // namespace cuflash::cli
