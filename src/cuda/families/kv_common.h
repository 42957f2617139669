// What the families over a KV cache share: tiles, splits, workspace.
#pragma once

#include <span>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/family.h"
#include "cuda/plan/plan_common.h"
#include "cuda/plan/tuned_config.h"

namespace cuflash::cuda {

// Tiles for up to tile_q rows of head sizes up to largest_dim. Where rows are few, warps share the keys, so that four
// warps or more keep copies in flight.
struct KvTiles {
  int largest_dim, tile_q, tile_k, row_warps, key_warps, column_warps, ctas_per_sm;
  bool plain_only = false;         // options would need more registers
  bool single_cta_per_sm = false;  // sm90: only used if there are so few row tiles that no SM gets two CTAs
};

// The members that a tuner chooses.
using KvMember = Tunable<KvConfig>::Member;
inline constexpr KvMember kKvMembers[] = {{&tuned::Choice::tile_q, &KvConfig::tile_q},
                                          {&tuned::Choice::tile_k, &KvConfig::tile_k},
                                          {&tuned::Choice::row_warps, &KvConfig::row_warps},
                                          {&tuned::Choice::key_warps, &KvConfig::key_warps},
                                          {&tuned::Choice::column_warps, &KvConfig::column_warps},
                                          {&tuned::Choice::stages, &KvConfig::stages},
                                          {&tuned::Choice::ctas_per_sm, &KvConfig::ctas_per_sm}};

// The cache as a tensor: entries, or pages.
RowsExtent cached_extent(const Problem& problem, int64_t dim);

// Where v is a slice of k's rows: the first column of k that is in v.
int64_t column_of_values(const CacheProblem& problem);

int kv_options(const CacheProblem& problem, int copy);

// sm90: whether a call is one that KvConfig::fast_decode describes.
bool is_fast_decode(const CacheProblem& problem);

// Number of row tiles, or of anything else of which every sequence and key/value head has `count`. The result is capped
// at far more than any device or grid holds: decisions that depend on it stay in range, and launch_of rejects the plan.
int64_t of_all_heads(const CacheProblem& problem, int64_t count);
int64_t row_tiles(const CacheProblem& problem, int tile_q);

// The largest number of key tiles that a row tile may see.
int64_t max_key_tiles(const CacheProblem& problem, int tile_q, int tile_k);

// Row tiles that fill the device with one CTA per SM are not split: adding up splits takes longer than waiting for a
// sequence of this length.
bool fills_once(int64_t tiles, int64_t key_tiles, int64_t sms);

inline constexpr int64_t kMaxCuts = 8;  // splits of a long sequence, so that it does not keep the device waiting

// Sets the tiles of a config: the first of the table that fits, largest row tiles first. accepts(t, c) may skip tiles;
// max_stages(t, c) says how many stages are worth their shared memory. Throws CUFLASH_UNSUPPORTED if none fits.
template <class Accepts, class MaxStages>
void choose_tiles(KvConfig& c, const CacheProblem& p, const Arch& arch, std::span<const KvTiles> table, Accepts accepts,
                  MaxStages max_stages);

// Whether tiles, warps and stages are of sizes that kernels may have at all.
bool has_legal_sizes(const KvConfig& config);
// Limits of a config of legal sizes whose products are mma.sync of 16 rows per warp.
Limits mma_limits(const KvConfig& config, const Arch& arch);

// Whether a few more short splits may fill the end of a call, when CTAs finish one after the other.
enum class ShortSplits { no, yes };
// The parts of a plan that follow from tiles and the number of SMs: splits, and how many CTAs run at the same time.
void plan_splits(KvPlan& plan, const CacheProblem& problem, const KvConfig& config, const PlanTarget& target,
                 ShortSplits short_splits);
// The launch and the workspace, after everything else.
void plan_launch(KvPlan& plan, const CacheProblem& problem, const KernelType& type, const KvConfig& config,
                 const Arch& arch);

std::vector<Alternatives> kv_candidates(const KernelType& type, const CacheProblem& problem, const KvPlan& plan,
                                        const Arch& arch);

// The config line of explain. copies: how rows are copied to shared memory.
std::string kv_config_line(const KvConfig& config, const char* copies);

// Implementation.

// The largest number of stages, up to `most`, with which all CTAs of an SM fit; 0: fewer than two.
int stages_that_fit(KvConfig config, const Arch& arch, int most);
[[noreturn]] void refuse_tiles(const CacheProblem& problem, const Arch& arch);

template <class Accepts, class MaxStages>
void choose_tiles(KvConfig& c, const CacheProblem& p, const Arch& arch, std::span<const KvTiles> table, Accepts accepts,
                  MaxStages max_stages) {
  // With a fixed number of splits the bits of a row may depend on its own sequence alone, and not on the number of
  // queries of the longest one.
  const int64_t rows = p.group() * (p.num_splits == 0 ? std::max<int64_t>(1, p.len_q) : 1);
  for (const int tile_q : {256, 128, 64, 32, 16}) {
    if (tile_q > 16 && rows <= tile_q / 2) continue;
    for (const KvTiles& t : table) {
      if (t.tile_q != tile_q || std::max(c.dim_qk, c.dim_v) > t.largest_dim) continue;
      if (c.dim_v % (16 * t.column_warps) != 0 || (t.plain_only && c.options != 0)) continue;
      c.tile_q = t.tile_q, c.tile_k = t.tile_k;
      if (!accepts(t, c)) continue;
      c.row_warps = t.row_warps, c.key_warps = t.key_warps, c.column_warps = t.column_warps;
      c.ctas_per_sm = t.ctas_per_sm;
      c.stages = stages_that_fit(c, arch, max_stages(t, c));
      if (c.stages != 0) return;
    }
  }
  refuse_tiles(p, arch);
}

}  // namespace cuflash::cuda
