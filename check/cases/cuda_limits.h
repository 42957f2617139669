// Limits of sweeps on CUDA.
#pragma once

#include "check/cases/case.h"

namespace cuflash::check {

// This many pairs of head sizes and three sets of options, drawn from the seed, since every pair and every set needs its
// own kernels. 0: any pair.
Limits cuda_limits(uint64_t seed, size_t head_sizes);

// This many sets, drawn from the seed, for cases of the kind that the limits describe. They replace all other limits on
// what kernels are compiled for.
void add_kernel_sets(Limits& limits, uint64_t seed, size_t count);

}  // namespace cuflash::check
