// Shared by the backward families: the workspace, the order of the heads, and the kernels before and after the main
// one.
#pragma once

#include "cuda/plan/plan_common.h"

namespace cuflash::cuda {

// LSE and delta of every row; dQ from its sums; dSink.
extern const KernelType backward_prepare, backward_finish, backward_sink;

// The SMs of the largest Hopper GPUs. A plan does not depend on the device, and a few SMs less change little.
constexpr int64_t kSms = 132;
// With more tasks than this, the order of tickets balances them, and second tasks need not be dealt.
constexpr int64_t kFewTasks = kSms * 7 / 2;

inline int64_t tiles_in(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }

// CTAs of a main kernel with one key tile each; 0 if it has nothing to compute.
Checked key_tiles(const BackwardProblem& problem, int tile_k);

// What a main kernel leaves in the workspace, and takes from there.
struct Sums {
  bool dq = false;              // dQ is summed there
  KeyParts parts = {};          // dK and dV are, where there are several
  bool lists_keys = false;      // the tasks of packed sequences follow a list
  bool claims_ahead = false;    // a CTA takes its next task when it begins one
  bool counts_tasks = false;    // those that have added to dQ
  bool defers_prepare = false;  // it prepares heads that its later tasks visit
  // Tasks of dBias are taken by ticket. With several parts of a tile, tiles and floats of all sums.
  bool dbias = false;
  int64_t dbias_counts = 0, dbias_sums = 0;
};
// The plan without its main kernel. c: the properties of the main kernel's config that the other kernels need.
BackwardPlan plan_around(const BackwardProblem& problem, const Arch& arch, const BackwardConfig& c, const Sums& sums);

}  // namespace cuflash::cuda
