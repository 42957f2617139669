// Checks that with a fixed number of splits no bit of a row's result depends on the rest of the batch.
#pragma once

#include <string>

#include "check/cases/cache_memory.h"

namespace cuflash::check {

// Computes sequence c.alone by itself; "" if o and lse have the same bits as in memory.
std::string differs_alone(const CacheCase& c, const CacheMemory& memory);

}  // namespace cuflash::check
