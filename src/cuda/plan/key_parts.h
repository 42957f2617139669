// How many tasks the work on a key tile is divided into.
//
// A task keeps the sums of dK and dV of a key tile in registers while it visits query tiles: those of all query heads
// that share the keys, one head after the other. Where that leaves fewer or longer tasks than the multiprocessors need,
// or tasks that read so many heads at a time that L2 does not hold them, parts of the heads, and then parts of their
// query tiles, become separate tasks, and dK and dV are summed in f32 in the workspace.
//
// These sums are bounded by max_sum_bytes().
#pragma once

#include "cuda/plan/plan.h"

namespace cuflash::cuda {

// Twice the size of an f32 dQ whose sequences are rounded up to whole tiles, or 16 MiB if that is more.
double max_sum_bytes(const BackwardProblem& problem);

// What the division depends on in addition to the problem.
struct MainKernel {
  BackwardConfig config;  // the portable view of its config
  bool sums_dq;           // it adds to dQ, too
  bool claims_late;       // a CTA takes its next task near the end of the current one
};
// reproducible: every part has separate sums, which are added up in order.
KeyParts key_parts(const BackwardProblem& problem, const MainKernel& kernel, Reproducible reproducible);

}  // namespace cuflash::cuda
