#include "cuda/plan/backward_common.h"

#include <algorithm>
#include <limits>

#include "backward_params.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType small_kernel(const char* name, const char* header, const char* bounds) {
  return {.name = name,
          .header = header,
          .config = "BackwardConfig",
          .params = "BackwardParams",
          .bounds = bounds,
          .config_ints = kInts<BackwardConfig>};
}

int64_t real_size(Element element) { return element == Element::f64 ? 8 : 4; }

BackwardWorkspace workspace_of(const BackwardProblem& p, const BackwardConfig& c, const Sums& sums) {
  BackwardWorkspace w;
  w.packed_tiles = p.total_q / c.tile_q + p.batch;
  const bool sums_dq = sums.dq || sums.keeping_ctas != 0;
  w.dq_rows = sums_dq ? static_cast<int>(std::min<int64_t>(c.tile_q, tiles_in(p.len_q, 16) * 16)) : 0;
  const Checked tiles = (p.packed() ? w.packed_tiles : Checked(p.batch) * tiles_in(p.len_q, c.tile_q)) * p.heads_q;
  // The numbering of kernels/portable/backward/workspace.h.
  constexpr int kSumKeys = 64;
  w.packed_key_tiles = p.total_k / kSumKeys + p.batch;
  const Checked key_tiles =
      sums.parts.count() == 1
          ? Checked(0)
          : (p.packed() ? w.packed_key_tiles : Checked(p.batch) * tiles_in(p.len_k, kSumKeys)) * p.heads_k;
  const Checked sum_rows = key_tiles * (sums.parts.own_sums ? sums.parts.count() : 1) * kSumKeys;
  if (sums.lists_keys && p.packed()) w.listed_tiles = p.total_k / c.tile_k + p.batch;
  Checked used = 64;  // the tile counters
  const auto take = [&](const Checked& bytes) {
    const Checked offset = used;
    used = round_up(used + bytes, 64);
    return offset;
  };
  const Checked ticket = take(Checked(2 + sums.dbias_counts) * int64_t{sizeof(uint64_t)});
  const Checked row_stats = take(tiles * row_stats_bytes(c));
  const Checked dq_tiles = sums.dq ? tiles : Checked(sums.keeping_ctas) * p.group() * tiles_in(p.len_q, c.tile_q);
  const Checked dq_accum = take(dq_tiles * w.dq_rows * c.dim_qk * real_size(c.element));
  const Checked dq_tasks =
      take(sums.counts_tasks ? Checked(p.batch) * p.heads_q * int64_t{sizeof(unsigned)} : Checked(0));
  const Checked prepared_tiles =
      take(sums.counts_tasks ? Checked(p.batch) * p.heads_q * int64_t{sizeof(unsigned)} : Checked(0));
  const Checked prepare_ticket = take(sums.counts_tasks ? int64_t{sizeof(unsigned)} : 0);
  const Checked dq_semaphore = take(c.ordered ? tiles * int64_t{sizeof(unsigned)} : 0);
  const Checked list = take(w.listed_tiles != 0 ? (Checked(w.listed_tiles) + 1) * int64_t{sizeof(KeyTile)} : 0);
  const Checked dbias_sums = take(Checked(sums.dbias_sums) * int64_t{sizeof(float)});
  const Checked dk_accum = take(sum_rows * c.dim_qk * real_size(c.element));
  const Checked dv_accum = take(sum_rows * c.dim_v * real_size(c.element));
  w.size = workspace_bytes(used);  // all parts are within this size
  w.tiles = tiles.value("q: its tiles are");
  w.ticket = workspace_bytes(ticket), w.row_stats = workspace_bytes(row_stats);
  (sums.dq ? w.dq_accum : w.kept_dq) = sums_dq ? workspace_bytes(dq_accum) : 0;
  w.dq_semaphore = workspace_bytes(dq_semaphore);
  if (sums.counts_tasks) {
    w.dq_tasks = workspace_bytes(dq_tasks);
    w.prepared_tiles = workspace_bytes(prepared_tiles), w.prepare_ticket = workspace_bytes(prepare_ticket);
  }
  w.key_tiles = key_tiles.value("k: its tiles are");
  w.dbias_counts = static_cast<int>(sums.dbias_counts), w.dbias_sums = workspace_bytes(dbias_sums);
  w.list = workspace_bytes(list), w.dk_accum = workspace_bytes(dk_accum), w.dv_accum = workspace_bytes(dv_accum);
  return w;
}

// The number of heads whose key tiles are interleaved. With few heads, CTAs that run at the same time read the same
// queries and add to the same dQ; with more heads, the long tiles of a causal mask start earlier. As many heads as fit
// in a part of the L2 cache are a compromise. If dQ is added in key order, a CTA waits for the key tile before its own,
// and interleaving all heads keeps the two far apart. Parts of heads count as heads. Packed sequences in a list are one
// long head, whose first tiles are those of the longest sequence. For these, balance is worth more than the cache (16
// heads instead of 1: 1.07 and 1.10 of the speed).
int interleaved_heads(const BackwardProblem& p, const BackwardConfig& c, const Sums& sums) {
  constexpr int64_t kCacheBytes = 24 << 20, kMax = 1 << 20;
  if (c.ordered) return static_cast<int>(std::clamp<int64_t>(p.batch * p.heads_k, 1, kMax));
  constexpr int kListedHeads = 16;
  if (sums.lists_keys && p.packed()) return kListedHeads;
  const int64_t row = (p.dim_qk + p.dim_v) * size_of(c.element) + p.dim_qk * real_size(c.element);
  const int64_t head = (Checked(p.len_q) * p.group() * row).at_most((kCacheBytes + 1) * sums.parts.count());
  return static_cast<int>(std::clamp<int64_t>(kCacheBytes * sums.parts.count() / std::max<int64_t>(1, head), 1, kMax));
}

// Whether later key tiles are shorter tasks, because fewer queries see later keys.
bool later_tasks_are_shorter(const BackwardProblem& p) {
  return p.window_right != kUnbounded && p.window_left == kUnbounded;
}

// The number of interleaved heads at the end. If later tasks are shorter, all other CTAs wait for the one that has the
// first keys of the last heads, so enough short tiles, and hence enough heads, must follow it. The same holds for
// sequences of different lengths. A CTA that claims its next tile when it begins one may hold two of the longest, so
// more tiles must follow. Still more tiles were slower, and so were more tiles for sequences of different lengths
// (docs/lab/sm90_backward.md).
int tail_heads(const BackwardProblem& p, const BackwardConfig& c, const Sums& sums, int together) {
  const bool listed = sums.lists_keys && p.packed(), dense = !p.packed() && !p.used_q && !p.used_k;
  const int64_t wanted = sums.lists_keys && dense ? 464 : 264;  // 3.5 or 2 per SM of the largest GPUs
  const int64_t heads = (listed ? 1 : p.batch) * p.heads_k * sums.parts.count();
  const bool falls = listed || later_tasks_are_shorter(p);
  const int64_t tiles = std::max<int64_t>(1, tiles_in(listed ? p.total_k : p.len_k, c.tile_k));
  const int64_t needed = falls ? tiles_in(wanted, tiles) : 1;
  return static_cast<int>(heads <= needed ? heads : heads - (heads - needed) / together * together);
}

// The number of heads that the prepare kernel prepares: those that the first rounds of tasks visit. The main kernel has
// time to prepare the others. Parts of the queries do not count as tasks here: they take less time, so that the next
// heads are due earlier (with three parts, 16 heads of 2,048 took 366 us instead of 116).
int64_t prepared_heads(const BackwardProblem& p, const BackwardConfig& c, const Sums& sums, int together) {
  constexpr int64_t kRounds = 2;
  const int64_t heads = (Checked(p.batch) * p.heads_q).at_most(std::numeric_limits<int64_t>::max());
  if (!sums.defers_prepare) return heads;
  const int64_t tasks =
      std::max<int64_t>(1, tiles_in(p.len_k, c.tile_k)) * sums.parts.heads;  // tasks of a key/value head
  const int64_t first = std::max<int64_t>(tiles_in(kRounds * kSms, tasks), tiles_in(together, sums.parts.count()));
  return std::min(heads, first * p.group());
}

// Whether the CTA with the longest first task gets the shortest second one. In a simulation, two heads of 16,384 keys
// then keep the multiprocessors busy for 0.95 of the time instead of 0.65. With more than three and a half tasks per
// multiprocessor, the order of tickets is as good.
bool pairs_tasks(const BackwardProblem& p, const BackwardConfig& c, const Sums& sums) {
  return sums.claims_ahead && !p.packed() && later_tasks_are_shorter(p) && sums.parts.count() == 1 &&
         key_tiles(p, c.tile_k).at_most(kFewTasks + 1) <= kFewTasks;
}

// The config of a small kernel, without the fields that the kernel does not depend on, so that fewer such kernels are
// compiled.
BackwardConfig small_config(const BackwardConfig& c, int dim_qk, int dim_v) {
  BackwardConfig small{};
  small.element = c.element, small.dim_qk = dim_qk, small.dim_v = dim_v, small.tile_q = c.tile_q;
  return small;
}

}  // namespace

constinit const KernelType backward_prepare =
    small_kernel("backward_prepare", "portable/backward_prepare.h", "prepare_threads(C)");
constinit const KernelType backward_finish =
    small_kernel("backward_finish", "portable/backward_finish.h", "finish_threads(C)");
constinit const KernelType backward_sink = small_kernel("backward_sink", "portable/backward_sink.h", "sink_threads(C)");

Checked key_tiles(const BackwardProblem& p, int tile_k) {
  return p.dq || p.dk || p.dv ? Checked(p.batch) * p.heads_k * tiles_in(p.len_k, tile_k) : 0;
}

BackwardPlan plan_around(const BackwardProblem& p, const Arch& arch, const BackwardConfig& c, const Sums& sums) {
  BackwardPlan plan;
  plan.tile_q = c.tile_q, plan.tile_k = c.tile_k, plan.ordered = c.ordered != 0;
  plan.workspace = workspace_of(p, c, sums);
  plan.parts = sums.parts;
  if (sums.keeping_ctas == 0) {  // otherwise heads are not interleaved
    plan.interleaved_heads = interleaved_heads(p, c, sums);
    plan.tail_heads = tail_heads(p, c, sums, plan.interleaved_heads);
  }
  plan.pairs_tasks = pairs_tasks(p, c, sums);

  const Checked query_tiles = plan.workspace.tiles;
  plan.prepared_heads = prepared_heads(p, c, sums, plan.interleaved_heads);
  const Checked prepared =
      sums.defers_prepare ? Checked(plan.prepared_heads) * tiles_in(p.len_q, c.tile_q) : query_tiles;
  // This kernel also resets the ticket of the main one, so it has at least one CTA.
  BackwardConfig prepare = small_config(c, c.dim_qk, c.dim_v);
  if (sums.dbias) prepare.options = kBias;
  plan.prepare = launch_of(key_of(backward_prepare, arch, prepare), prepared.at_most(1) == 0 ? 1 : prepared,
                           prepare_threads(prepare), 0);
  const bool sums_keys = sums.parts.count() > 1;
  if (sums.dq || sums_keys) {
    const BackwardConfig finish = small_config(c, c.dim_qk, sums_keys ? c.dim_v : 0);
    const Checked tiles = (sums.dq ? query_tiles : Checked(0)) + Checked(plan.workspace.key_tiles) * 2;
    plan.finish = launch_of(key_of(backward_finish, arch, finish), tiles, finish_threads(finish), 0);
  }
  if (p.dsink) {
    const BackwardConfig sink = small_config(c, 0, 0);
    plan.sink = launch_of(key_of(backward_sink, arch, sink), p.heads_q, sink_threads(sink), 0);
  }
  return plan;
}

}  // namespace cuflash::cuda
