// A fixed number of splits promises that a row's result does not depend, in any bit, on the rest of the batch.
#pragma once

#include <string>

#include "check/memory/cache_memory.h"

namespace cuflash::check {

// Computes sequence c.alone by itself; "" where o and lse have the bits that memory holds.
std::string differs_alone(const CacheCase& c, const CacheMemory& memory);

}  // namespace cuflash::check
