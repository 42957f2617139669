// Random calls over a KV cache, of few kernels: the same ones for kernels that run on a GPU and on the host.
#pragma once

#include "tests/cpu/cache_scene.h"

namespace cuflash::test {

CacheCase random_cache_case(uint64_t seed, uint64_t index);

}  // namespace cuflash::test
