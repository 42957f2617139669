// The checked mode of lengths in device memory.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"

namespace cuflash {

// Nothing where check_lengths is off or the tensors are in host memory. Otherwise waits for the stream, copies the lengths
// and has them described as host lengths are: what is wrong with them is said in the same sentences. The arguments have
// been described with `place`.
void check_lengths(const cuflash_attention& attention, const cuflash_forward_outputs& outputs,
                   const Execution& execution, Place place);
void check_lengths(const cuflash_attention& attention, const cuflash_backward_tensors& tensors,
                   const Execution& execution, Place place);
// Tables and indices of a cache too.
void check_lengths(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& execution,
                   Place place);

}  // namespace cuflash
