// Problems over a KV cache become the structs that are sent to their kernels.
#pragma once

#include "cuda/families/plan_kv.h"
#include "kv_params.h"

namespace cuflash::cuda {

// workspace: of the size that the plan says. tile_counts: as in attention_params.
KvParams kv_params(const CacheProblem& problem, const KvPlan& plan, void* workspace, uint64_t* tile_counts);
// Of a plan with boxes.
Sm90KvParams sm90_kv_params(const CacheProblem& problem, const KvPlan& plan, void* workspace, uint64_t* tile_counts);
MergeParams merge_params(const MergeProblem& problem);

}  // namespace cuflash::cuda
