// The decisions for a problem: kernels, grids, workspace. A plan is a pure function of the problem, the architecture
// and a tuned choice for such problems, if there is one; it needs no GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "checked.h"
#include "cuda/jit/kernel_key.h"
#include "problem/mask_shape.h"
#include "problem/problem.h"
#include "tuned/choice.h"

namespace cuflash::cuda {

struct Launch {
  KernelKey kernel;                             // includes the config
  uint32_t grid_x = 0, grid_y = 1, grid_z = 1;  // CTAs, whose order does not matter; grid_x 0: nothing to do
  int threads = 0, shared_bytes = 0;
  bool programmatic = false;  // programmatic dependent launch: may start before its predecessor ends, and waits itself
  bool cooperative = false;   // CTAs wait for each other, so all of them must be resident at once
  bool persistent = false;    // CTAs share the tiles: ctas_per_sm CTAs per SM are enough
  int ctas_per_sm = 1;        // of a persistent kernel

  int64_t ctas() const { return int64_t{grid_x} * grid_y * grid_z; }
};

// A launch of `ctas` CTAs, in two dimensions if one cannot hold them. Throws CUFLASH_UNSUPPORTED if they exceed the
// grid's limits.
Launch launch_of(const KernelKey& kernel, const Checked& ctas, int threads, int shared_bytes);

// CTAs in the first dimension of the grid on a device with this many SMs.
inline uint32_t grid_of(const Launch& launch, int num_sms) {
  const auto resident = static_cast<uint32_t>(num_sms * launch.ctas_per_sm);
  return launch.persistent ? std::min(launch.grid_x, resident) : launch.grid_x;
}

// Which families a plan may choose from: only the portable ones, or all that serve the architecture.
enum class KernelPreference { portable, best };
// The preference that CUFLASH_CUDA_KERNELS sets; by default the best kernels.
KernelPreference kernel_preference();

// Defined in family.h. The first family that accepts the problem makes its plan.
template <class Problem, class Plan>
struct Family;

// Parts of the workspace over a KV cache, as offsets in bytes after the tile counters. Empty if keys are not split. Its
// content before a call does not matter. An exchange needs at least as much workspace as tickets do.
struct KvWorkspace {
  size_t tickets = 0, states = 0, sums = 0;
  size_t size = 0;
};

// Parts of the workspace of forward, as offsets in bytes after the tile counters. Empty if keys are not split, tiles
// are not listed and there is no mask tensor. Its content before a call does not matter.
struct ForwardWorkspace {
  size_t states = 0, sums = 0;  // partial results of splits
  size_t list = 0;              // list of query tiles, after its counters
  size_t mask_lists = 0;
  size_t size = 0;
};

inline constexpr Launch kNoLaunch{};

// What a plan over a KV cache has in addition if forward kernels attend it.
struct CachedForward {
  // Launched before and after the main kernel: append and rotary embedding, the list of query tiles; the reduction of
  // splits. A kernel that is not needed has a grid of 0.
  Launch prepare, list, combine;
  int64_t packed_heads = 1;  // as in ForwardPlan
  ForwardWorkspace workspace;
  size_t lengths = 0, first_rows = 0, rotated_q = 0;  // further parts of the workspace: see CachedForwardParams
};

struct KvPlan {
  const Family<CacheProblem, KvPlan>* family = nullptr;
  int tile_q = 0, tile_k = 0;
  Launch launch;
  int64_t row_tiles = 0;    // row tiles per sequence and key/value head
  int64_t splits = 1;       // splits of the keys of a row tile
  int64_t base_splits = 1;  // KvParams::base_splits
  int64_t min_tiles_per_split = 1;
  int64_t short_splits = 0;
  int64_t state_rows = 0;         // rows of a tile whose partial sums are kept
  int64_t first_wave_ctas = 0;    // CTAs that are resident from the start
  bool all_resident = false;      // all CTAs are resident from the start
  int64_t box_rows = 0;           // sm90: rows of a TMA box
  int64_t prefetched_splits = 0;  // sm90: PrologueLoads::splits and tiles
  int64_t prefetched_tiles = 0;
  int64_t loads_in_flight = 0;  // sm90: Sm90KvParams::loads_in_flight
  KvWorkspace workspace;
  std::optional<CachedForward> forward;  // many queries: the main kernel is that of sm90_forward
  const char* reason = nullptr;          // why this many splits, or why forward, for explain
  bool tuned = false;

  std::array<const Launch*, 4> launches() const {
    if (!forward) return {&launch, &kNoLaunch, &kNoLaunch, &kNoLaunch};
    return {&forward->prepare, &forward->list, &launch, &forward->combine};
  }
};
// How the splits of a row become one result.
//
// exchange: splits send their partial sums to each other (kernels/kv/exchange.h). That requires all CTAs to be resident
// at once; a plan does so only if they are, and if it is faster. ticket: the CTA that finishes last adds them up, and
// no CTA waits for another.
//
// Which of the two is faster depends on the number of SMs. No other member of a config but KvConfig::l2_exchange does.
// It selects between two variants of a kernel that are equal in everything else. A pack holds both variants of every
// kernel that may exchange, so that it still serves every board of an architecture (typical.h).
enum class SplitReduction { exchange, ticket };

struct ForwardPlan {
  const Family<ForwardProblem, ForwardPlan>* family = nullptr;
  int tile_q = 0, tile_k = 0;
  // Launched in this order: the lists of tiles that a mask shows, the list of query tiles, the main kernel, the
  // reduction of splits. A kernel that is not needed has a grid of 0.
  Launch mask_lists, list, launch, combine;
  int64_t splits = 1;        // splits of the keys of a query tile
  int64_t packed_heads = 1;  // heads of a group that are rows of one tile
  ForwardWorkspace workspace;
  std::optional<KvPlan> kv;      // few queries: the plan of the same problem over a KV cache, whose launch this is
  const char* reason = nullptr;  // why this config, for explain
  bool tuned = false;            // whether the config is the given choice

  std::array<const Launch*, 4> launches() const { return {&mask_lists, &list, &launch, &combine}; }
};
// Inputs of a forward plan in addition to the problem and the architecture.
struct ForwardRun {
  int num_sms = 0;  // SMs of the device; 0: those of the usual board
  // false: the call has no workspace. Keys are then not split, and tiles are distributed as if all sequences were as
  // long as the longest.
  bool has_workspace = true;
  SplitReduction reduction = SplitReduction::exchange;
};
// choice: null, or the config that a tuner found. The plan uses it if it is legal and belongs to the chosen family.
// Throws CUFLASH_UNSUPPORTED, with a sentence, if no kernel computes the problem.
ForwardPlan plan_forward(const ForwardProblem& problem, const Arch& arch,
                         KernelPreference kernels = kernel_preference(), const tuned::Choice* choice = nullptr,
                         const ForwardRun& run = {});
inline constexpr const char* kTunedReason = "the fastest that cuflash tune found for such problems on this device";

// Parts of the workspace of backward, as offsets in bytes; the tile counters come first.
struct BackwardWorkspace {
  int64_t packed_tiles = 0;      // query tiles of one head of packed tensors
  int64_t tiles = 0;             // query tiles of all heads, each of which has row statistics in the workspace
  int dq_rows = 0;               // rows of a tile of dQ sums; 0: dQ is not summed in the workspace
  int64_t packed_key_tiles = 0;  // tiles of 64 keys of one head of packed tensors
  int64_t key_tiles = 0;         // such tiles of all heads, where dK and dV are summed in the workspace
  int64_t listed_tiles = 0;      // key tiles of the main kernel in the list of packed sequences
  int dbias_counts = 0;          // tiles of dBias that several tasks share
  size_t dq_tasks = 0;           // counts of the tasks that have added to a head's dQ; 0: none
  size_t prepared_tiles = 0,
         prepare_ticket = 0;  // counts of prepared tiles, and the ticket of tiles to prepare; 0: none
  size_t kept_dq = 0;         // sums of dQ that CTAs keep, instead of dq_accum; 0: none
  size_t ticket = 0, row_stats = 0, dq_accum = 0, dq_semaphore = 0, list = 0, dbias_sums = 0, dk_accum = 0,
         dv_accum = 0;
  size_t mask_lists = 0, dq_mask_lists = 0;  // after the other parts; 0: none
  size_t size = 0;

  // Where the sums of dK and dV end. Only the lists come after them.
  size_t sums_end() const { return mask_lists != 0 ? mask_lists : dq_mask_lists != 0 ? dq_mask_lists : size; }
};

// The number of tasks into which the work on a key tile is divided: see key_parts.h.
struct KeyParts {
  int heads = 1, queries = 1;
  bool own_sums = false;  // every part has separate sums, which are added up in order

  int count() const { return heads * queries; }
};

struct BackwardPlan {
  const Family<BackwardProblem, BackwardPlan>* family = nullptr;
  int tile_q = 0, tile_k = 0;
  bool ordered = false;  // the main kernel sums dQ in the order of the keys
  // Launched in this order. A kernel that is not needed has a grid of 0; `main` names its kernel even then.
  Launch mask_lists, dq_mask_lists, prepare, main, dq, finish, bias, sink;
  BackwardWorkspace workspace;
  KeyParts parts;
  int dbias_parts = 1;               // tasks that share a tile of dBias
  int64_t prepared_heads = 0;        // with a loader: query heads that the prepare kernel prepares
  int interleaved_heads = 1;         // key/value heads, or parts of them, whose key tiles are processed side by side
  int tail_heads = 1;                // size of the last group of interleaved heads
  bool pairs_tasks = false;          // a CTA with a long first task gets a short second one
  int dq_tile_q = 0, dq_tile_k = 0;  // tile of the dQ kernel, if it runs
  const char* reason = nullptr;
  bool tuned = false;

  std::array<const Launch*, 8> launches() const {
    return {&mask_lists, &dq_mask_lists, &prepare, &main, &dq, &finish, &bias, &sink};
  }
};
// yes: dQ must be bitwise reproducible (`deterministic`).
enum class Reproducible { no, yes };
BackwardPlan plan_backward(const BackwardProblem& problem, const Arch& arch, Reproducible reproducible,
                           KernelPreference kernels = kernel_preference(), const tuned::Choice* choice = nullptr);

// num_sms: SMs of the device. The number of splits depends on it unless the problem fixes that number. The kernel
// depends on it only by SplitReduction. choice: see plan_forward; ignored if the problem fixes the number of splits,
// which also fixes the bits of the result. has_workspace: false if the call has no workspace for the forward kernels.
KvPlan plan_kv(const CacheProblem& problem, const Arch& arch, int num_sms,
               KernelPreference kernels = kernel_preference(), const tuned::Choice* choice = nullptr,
               SplitReduction reduction = SplitReduction::exchange, bool has_workspace = true);

struct MergePlan {
  Launch launch;
};
MergePlan plan_merge(const MergeProblem& problem, const Arch& arch);
// The kernel that makes the summary of a mask tensor.
Launch plan_mask_summary(const ConstRows& mask, const MaskShape& shape, const Arch& arch);

}  // namespace cuflash::cuda
