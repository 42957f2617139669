// Random calls over a KV cache that need few kernels; the same calls for kernels on a GPU and in the emulator.
#pragma once

#include "tests/cpu/kv/cache_scene.h"

namespace cuflash::test {

CacheCase random_cache_case(uint64_t seed, uint64_t index);

// Calls with so many queries that the forward kernels attend the cache on sm_90.
CacheCase random_prefill_case(uint64_t seed, uint64_t index);

}  // namespace cuflash::test
