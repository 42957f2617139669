// Shared by the backward families: the workspace, the order of the heads, and the kernels before and after the main
// one.
#pragma once

#include "cuda/plan/plan_common.h"

namespace cuflash::cuda {

// The kernels that compute LSE and delta of every row, dQ from its sums, and dSink.
extern const KernelType backward_prepare, backward_finish, backward_sink;

// The SMs of the largest Hopper GPUs. A plan does not depend on the device, and a few SMs less change little.
constexpr int64_t kSms = 132;
// With more tasks than this, the order of tickets balances them, and first and second tasks need not be paired.
constexpr int64_t kFewTasks = kSms * 7 / 2;

inline int64_t tiles_in(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }

// CTAs of a main kernel with one key tile each; 0 if it has nothing to compute.
Checked key_tiles(const BackwardProblem& problem, int tile_k);

// How a main kernel uses the workspace and the small kernels.
struct Sums {
  bool dq = false;              // dQ is summed in the workspace
  int64_t keeping_ctas = 0;     // CTAs that keep the sums of dQ of their heads in the workspace; 0: none does
  KeyParts parts = {};          // if there are several parts, dK and dV are summed in the workspace
  bool lists_keys = false;      // the tasks of packed sequences follow a list
  bool claims_ahead = false;    // a CTA takes its next task when it begins one
  bool counts_tasks = false;    // tasks that have added to dQ are counted per head
  bool defers_prepare = false;  // the main kernel prepares the heads that its later tasks visit
  // dbias: tasks of dBias are taken by ticket. If tiles have several parts: number of tiles, and floats of all sums.
  bool dbias = false;
  int64_t dbias_counts = 0, dbias_sums = 0;
};
// The plan without its main kernel. c: the properties of the main kernel's config that the other kernels need.
BackwardPlan plan_around(const BackwardProblem& problem, const Arch& arch, const BackwardConfig& c, const Sums& sums);

}  // namespace cuflash::cuda
