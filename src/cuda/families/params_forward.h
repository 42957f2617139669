// A Problem becomes the structs that are sent to kernels.
#pragma once

#include "cuda/plan.h"
#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

template <class Pointer>
RowsView view_of(const BasicRows<Pointer>& rows);
template <class Pointer>
HeadView view_of(const BasicHeadValues<Pointer>& values);

// tile_counts: null, or three counters in device memory that are zero.
AttentionParams attention_params(const Problem& problem, uint64_t* tile_counts);
ForwardParams forward_params(const ForwardProblem& problem, uint64_t* tile_counts);
// plan: one with a Sm90ForwardConfig. ctas: how many are launched.
Sm90ForwardParams sm90_forward_params(const ForwardProblem& problem, const ForwardPlan& plan, int64_t ctas,
                                      uint64_t* tile_counts);

}  // namespace cuflash::cuda
