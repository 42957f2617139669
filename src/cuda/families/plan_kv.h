// What was decided for attention over a KV cache, and for the merging of two results. Pure functions, which run without a
// GPU.
#pragma once

#include "cuda/driver/tensor_map.h"
#include "cuda/plan.h"

namespace cuflash::cuda {

// Parts of the workspace, as offsets in bytes behind the counters of tiles. Empty where nothing is split. What is in it
// before a call does not matter. Posts need no less of it than tickets.
struct KvWorkspace {
  size_t tickets = 0, states = 0, sums = 0;
  size_t size = 0;
};

struct KvPlan {
  KvConfig config;
  Launch launch;
  int64_t row_tiles = 0;     // of a sequence and key/value head
  int64_t splits = 1;        // of the keys of such a tile
  int64_t eager_splits = 1;  // as in KvParams
  int64_t least_tiles = 1;
  int64_t short_splits = 0;
  int64_t state_rows = 0;       // rows of a tile whose sums are kept
  int64_t box_rows = 0;         // of tensor copies
  int64_t first_wave_ctas = 0;  // run from the beginning
  bool at_once = false;         // that is all of them
  int64_t known_splits = 0;     // as in PrologueLoads
  int64_t known_tiles = 0;
  int64_t loads_in_flight = 0;  // as in Sm90KvParams
  KvWorkspace workspace;
  const char* no_tma = nullptr;  // why there are none
  const char* reason;            // why this many splits, for explain
  bool tuned = false;            // by the choice that was given
};
// num_sms: of the device. The kernel does not depend on it, the number of splits does unless the problem names one.
// Throws CUFLASH_UNSUPPORTED, in a sentence, for what the kernels do not compute.
// reduction: by exchange where all CTAs may run at one time and it is worth it, or tickets, of which nobody waits for another CTA.
// choice: as in plan_forward; not taken where the problem names a number of splits, which promises more than speed.
enum class SplitReduction { by_exchange, by_tickets };
KvPlan plan_kv(const CacheProblem& problem, const Arch& arch, int num_sms, Kernels kernels = wanted_kernels(),
               const tuned::Choice* choice = nullptr, SplitReduction reduction = SplitReduction::by_exchange);

// Of the cache as a tensor: entries, or pages.
RowsExtent cached_extent(const CacheProblem& problem, int64_t dim);

// Where v is a slice of k's rows: the first element of these that is in v.
int64_t column_of_values(const CacheProblem& problem);

struct MergePlan {
  MergeConfig config;
  Launch launch;
};
MergePlan plan_merge(const MergeProblem& problem, const Arch& arch);

// Multiprocessors of the largest device of an architecture, where a plan is asked for without a device.
int usual_sms(const Arch& arch);

}  // namespace cuflash::cuda
