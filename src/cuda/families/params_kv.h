// The params of the kernels over a KV cache.
#pragma once

#include "cuda/plan/plan.h"
#include "kv_params.h"

namespace cuflash::cuda {

// Counts of rows and entries that do not fit into an int are clamped to the largest int: no sequence is that long, and
// no table names more.
int as_int(int64_t count);

// workspace: as large as the plan says. tile_counts: as in attention_params.
KvParams kv_params(const CacheProblem& problem, const KvPlan& plan, void* workspace, uint64_t* tile_counts);
MergeParams merge_params(const MergeProblem& problem);

}  // namespace cuflash::cuda
