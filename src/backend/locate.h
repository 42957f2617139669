// Where the tensors of a call are, which decides the backend: before anything is described, since lengths in device
// memory may not be read.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"

namespace cuflash {

// The place of the first tensor that has elements: q, unless it is empty. Every other one, and the workspace, must be
// there too. Throws FlashAttentionError: CUFLASH_NO_DEVICE where device cuda was asked for and there is none, otherwise
// a sentence about the tensor that is elsewhere.
//
// Device cpu: nothing is looked at. Device auto in a process without libcuda: neither, there can be no device memory.
// Otherwise the driver is asked about each pointer, about 0.1 us each: less than a call that would end in an illegal
// address costs.
Place locate(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, const Execution& execution);
Place locate(const cuflash_attention& attention, const cuflash_backward_tensors& tensors, const Execution& execution);
Place locate(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& execution);
Place locate(const cuflash_merge_tensors& tensors, const Execution& execution);

}  // namespace cuflash
