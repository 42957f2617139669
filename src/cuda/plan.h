// What was decided for a problem: kernels, grids, workspace. A pure function of the problem, the architecture and what was
// measured for such problems, if anything; it runs without a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "checked.h"
#include "cuda/jit/kernel_key.h"
#include "problem/problem.h"
#include "tuned/choice.h"

namespace cuflash::cuda {

struct Launch {
  KernelKey kernel;
  uint32_t grid_x = 0, grid_y = 1, grid_z = 1;  // CTAs in any order; grid_x 0: nothing to do
  int threads = 0, shared_bytes = 0;
  bool programmatic = false;  // programmatic dependent launch: may start before its predecessor ends, and waits itself
  bool cooperative = false;   // CTAs wait for each other, so all of them must be resident at once
  bool persistent = false;    // CTAs share the tiles: one CTA per SM is enough
  bool aligned_params = false;  // more strictly than the place where a block of params begins

  int64_t ctas() const { return int64_t{grid_x} * grid_y * grid_z; }
};

// A launch of `ctas` CTAs, more than one dimension of a grid holds included. Throws CUFLASH_UNSUPPORTED where a whole grid
// holds fewer.
Launch launch_of(const KernelKey& kernel, const Checked& ctas, int threads, int shared_bytes);

// Which kernels a plan may choose: those for every architecture alone, or those for one where there are some.
enum class Kernels { portable, best };
// As CUFLASH_CUDA_KERNELS says; the best ones unless it does.
Kernels wanted_kernels();

struct ForwardPlan {
  std::variant<ForwardConfig, Sm90ForwardConfig> config;
  int tile_q, tile_k;
  Launch launch;
  const char* reason;              // why this config, for explain
  const char* not_sm90 = nullptr;  // why not the kernel for Hopper, on Hopper
  bool tuned = false;              // by the choice that was given
};
// choice: null, or the config that a tuner found. It is taken where it is legal and for the kernel that the plan chooses.
// Throws CUFLASH_UNSUPPORTED, in a sentence, for what the kernels do not compute.
ForwardPlan plan_forward(const ForwardProblem& problem, const Arch& arch, Kernels kernels = wanted_kernels(),
                         const tuned::Choice* choice = nullptr);
inline constexpr const char* kTunedReason = "the fastest that cuflash tune found for such problems on this device";

// Parts of the workspace of backward, as offsets in bytes; the counters of tiles come first.
struct BackwardWorkspace {
  int64_t packed_tiles = 0;  // of queries, of one head of packed tensors
  int64_t tiles = 0;         // of queries, of all heads: the workspace has statistics of so many
  int dq_rows = 0;           // of a tile of sums of dQ; 0: there are none
  size_t ticket = 0, row_stats = 0, dq_accum = 0, dq_semaphore = 0;
  size_t size = 0;
};

struct BackwardPlan {
  std::variant<BackwardConfig, Sm90BackwardConfig> config;  // of the main kernel
  Sm90DqConfig dq_config{};                                 // of the one for dQ alone
  int tile_q, tile_k;
  bool ordered;                                  // the main kernel sums dQ in the order of the keys
  Launch prepare, main, dq, finish, bias, sink;  // launched in this order; grid 0 where not needed
  BackwardWorkspace workspace;
  int heads_together = 1;  // key/value heads whose tiles of keys are worked on side by side
  int heads_at_end = 1;    // as many of the last ones
  const char* reason;
  const char* not_sm90 = nullptr;  // as in ForwardPlan
  bool tuned = false;

  std::array<const Launch*, 6> launches() const { return {&prepare, &main, &dq, &finish, &bias, &sink}; }
};
// Deterministic asks for dQ that is bitwise reproducible.
enum class Reproducible { no, yes };
BackwardPlan plan_backward(const BackwardProblem& problem, const Arch& arch, Reproducible reproducible,
                           Kernels kernels = wanted_kernels(), const tuned::Choice* choice = nullptr);

}  // namespace cuflash::cuda
