// Runs one call over a cache through the public API and compares its results and the cache with the oracle.
#pragma once

#include <string>

#include "check/cases/cache_case.h"

namespace cuflash::check {

// "" if everything agrees, otherwise one line that says what is wrong, as for run_case.
std::string run_cache_case(const CacheCase& c);

}  // namespace cuflash::check
