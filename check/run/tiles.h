// The tile statistics that a call must report, counted pair by pair.
#pragma once

#include <cuflash/flash_attention.h>

#include <string>

#include "check/cases/case.h"
#include "check/cases/memory.h"

namespace cuflash::check {

// What is wrong with the statistics for the tile shape that they name, or "". packed: heads that share keys are rows of
// one tile, row query * group + head. memory holds the mask tensor, if the case has one.
enum class Heads { apart, packed };
std::string wrong_statistics(const Case& c, const TileStats& stats, Heads heads = Heads::apart,
                             const CaseMemory* memory = nullptr);

}  // namespace cuflash::check
