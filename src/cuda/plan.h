// What was decided for a problem: kernels, grids, workspace. A pure function of the problem and the architecture; it runs
// without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernel_key.h"
#include "problem/problem.h"

namespace cuflash::cuda {

struct Launch {
  KernelKey kernel;
  uint32_t grid_x = 0, grid_y = 1;  // CTAs in any order; grid_x 0: nothing to do
  int threads = 0, shared_bytes = 0;
};

// A launch of `ctas` CTAs, more than one dimension of a grid holds included.
Launch launch_of(const KernelKey& kernel, int64_t ctas, int threads, int shared_bytes);

struct ForwardPlan {
  ForwardConfig config;
  Launch launch;
  const char* reason;  // why this config, for explain
};
// Throws CUFLASH_UNSUPPORTED, in a sentence, for what the kernels do not compute.
ForwardPlan plan_forward(const ForwardProblem& problem, const Arch& arch);

// Parts of the workspace of backward, as offsets in bytes; the counters of tiles come first.
struct BackwardWorkspace {
  int64_t packed_tiles = 0;  // of queries, of one head of packed tensors
  int dq_rows = 0;           // of a tile of sums of dQ
  size_t ticket = 0, row_stats = 0, dq_sums = 0, turns = 0;
  size_t size = 0;
};

struct BackwardPlan {
  BackwardConfig config;
  Launch prepare, main, finish, bias, sink;  // launched in this order; grid 0 where not needed
  BackwardWorkspace workspace;
  int heads_together = 1;  // key/value heads whose tiles of keys are worked on side by side
  const char* reason;
};
// Deterministic asks for dQ that is bitwise reproducible.
enum class Reproducible { no, yes };
BackwardPlan plan_backward(const BackwardProblem& problem, const Arch& arch, Reproducible reproducible);

}  // namespace cuflash::cuda
