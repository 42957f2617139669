// Counts the bytes that attention moves and the operations that it performs, by formula, and tile by tile for a plan.
// Numbers are doubles, which are exact below 2^53.
#pragma once

#include <cuflash/flash_attention.h>

#include "cuda/plan/plan.h"
#include "problem/problem.h"

namespace cuflash::cli {

struct Moved {
  double read = 0, written = 0;
  double added = 0;  // to sums in device memory, by reductions without a return value (red)

  double total() const { return read + written + added; }
};

struct Traffic {
  TileStats tiles;
  double naive = 0;  // bytes of attention that stores its score matrices
  double paper = 0;  // bytes of FlashAttention's algorithms 1 (forward) and 4 (backward), which skip nothing
  Moved walk;        // requested by the plan's CTAs; L2 serves a part of it
  double least = 0;  // every input once and every output once
  // Operations of the products: for all pairs, for the pairs in visited tiles, and for the visible pairs.
  double dense_flops = 0, visited_flops = 0, visible_flops = 0;
};

// The traffic of the plans of plan_forward and plan_backward on this architecture; lengths are those of the tensors.
Traffic traffic_of(const ForwardProblem& problem, const cuda::Arch& arch,
                   cuda::KernelPreference kernels = cuda::kernel_preference());
Traffic traffic_of(const BackwardProblem& problem, const cuda::Arch& arch,
                   cuda::KernelPreference kernels = cuda::kernel_preference());

// The tile statistics of a call with tiles of this shape, from the geometry that the kernels share.
TileStats walked_tiles(const Problem& problem, int64_t tile_q, int64_t tile_k);

}  // namespace cuflash::cli
