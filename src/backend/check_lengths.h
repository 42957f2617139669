// The checked mode of lengths in device memory.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"

namespace cuflash {

// Does nothing if check_lengths is off or the tensors are in host memory. Otherwise waits for the stream, copies the
// lengths and describes them as host lengths, so that errors have the same sentences. The arguments have been described
// with `memory`.
void check_lengths(const cuflash_attention& attention, const cuflash_forward_outputs& outputs,
                   const Execution& execution, Memory memory);
void check_lengths(const cuflash_attention& attention, const cuflash_backward_tensors& tensors,
                   const Execution& execution, Memory memory);
// Also the tables and indices of a cache.
void check_lengths(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& execution,
                   Memory memory);

}  // namespace cuflash
