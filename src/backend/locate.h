// Which memory the tensors of a call are in, which decides the backend. This is determined before anything is
// described, since lengths in device memory must not be read.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"

namespace cuflash {

// The memory of the first tensor that has elements: q, unless it is empty. Every other tensor and the workspace must be
// in the same memory. Throws FlashAttentionError: CUFLASH_NO_DEVICE if device cuda is requested and there is none,
// otherwise a sentence about the tensor that is elsewhere.
//
// With device cpu, and with device auto in a process without libcuda, which cannot have device memory, no pointer is
// looked up. Otherwise the driver is asked about each pointer. A lookup takes about 0.1 us, less than a call costs that
// ends in an illegal address.
Memory locate(const cuflash_attention& attention, const cuflash_forward_outputs& outputs, const Execution& execution);
Memory locate(const cuflash_attention& attention, const cuflash_backward_tensors& tensors, const Execution& execution);
Memory locate(const cuflash_attention& attention, const cuflash_cache_tensors& cache, const Execution& execution);
Memory locate(const cuflash_merge_tensors& tensors, const Execution& execution);
Memory locate(const cuflash_tensor& mask, const cuflash_mutable_tensor& summary, const Execution& execution);

}  // namespace cuflash
