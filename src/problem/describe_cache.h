// Validates the arguments of a call over a KV cache, and of a merge, and builds their problems.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"
#include "problem/snapshot.h"

namespace cuflash {

// Lengths, block tables and batch indices in host memory are copied, and the problem points into `copies`. Those in
// device memory are not read.
CacheProblem describe(const cuflash_attention& attention, const cuflash_cache_tensors& cache, Memory memory,
                      Snapshot& copies);
MergeProblem describe(const cuflash_merge_tensors& tensors, Memory memory);

}  // namespace cuflash
