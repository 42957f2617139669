// Writes the times of `cuflash tune` as a file, from which tools/tile_tables.py makes built-in tables.
#pragma once

#include <string>
#include <vector>

#include "cli/tune/search.h"

namespace cuflash::cli {

// The file begins with comment lines: command, device, version, hash of the kernels' sources and date. CSV with one row
// per candidate follows.
std::string tune_csv(const std::vector<TuneOutcome>& outcomes, const std::string& command, const std::string& device);

}  // namespace cuflash::cli
