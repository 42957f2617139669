// Runs one call over a cache through the public API and holds its results, and the cache, to the oracle.
#pragma once

#include <string>

#include "check/cases/cache_case.h"

namespace cuflash::check {

// "" where everything agrees, otherwise one line that says what does not, as run_case does.
std::string run_cache_case(const CacheCase& c);

}  // namespace cuflash::check
