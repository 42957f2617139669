// The params of kernels, made from a Problem: those that all directions share, and those of forward.
#pragma once

#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

template <class Pointer>
RowsView view_of(const BasicRows<Pointer>& rows);
template <class Pointer>
HeadView view_of(const BasicHeadValues<Pointer>& values);

// tile_counts: null, or three zeroed counters in device memory.
AttentionParams attention_params(const Problem& problem, uint64_t* tile_counts);
ForwardParams forward_params(const ForwardProblem& problem, uint64_t* tile_counts);

}  // namespace cuflash::cuda
