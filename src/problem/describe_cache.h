// The arguments of a call over a KV cache, and of a merge, become validated problems here.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"
#include "problem/snapshot.h"

namespace cuflash {

// Lengths, tables and indices in host memory are copied: the problem points to `copies`. Those in the memory of a CUDA
// device are not read.
CacheProblem describe(const cuflash_attention& attention, const cuflash_cache_tensors& cache, Memory memory,
                      Snapshot& copies);
MergeProblem describe(const cuflash_merge_tensors& tensors, Memory memory);

}  // namespace cuflash
