#include "cuda/plan/backward_common.h"

#include <algorithm>

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

BackwardWorkspace workspace_of(const BackwardProblem& p, const BackwardConfig& c, bool sums_dq) {
  BackwardWorkspace w;
  w.packed_tiles = p.total_q / c.tile_q + p.batch;
  w.dq_rows = sums_dq ? static_cast<int>(std::min<int64_t>(c.tile_q, tiles_in(p.len_q, 16) * 16)) : 0;
  const Checked tiles = (p.packed() ? w.packed_tiles : Checked(p.batch) * tiles_in(p.len_q, c.tile_q)) * p.heads_q;
  Checked used = 64;  // the tile counters
  const auto take = [&](const Checked& bytes) {
    const Checked offset = used;
    used = round_up(used + bytes, 64);
    return offset;
  };
  const Checked ticket = take(sizeof(uint64_t));
  const Checked row_stats = take(tiles * row_stats_bytes(c));
  const Checked dq_accum = take(tiles * w.dq_rows * c.dim_qk * real_size(c.element));
  const Checked dq_semaphore = take(c.ordered ? tiles * int64_t{sizeof(unsigned)} : 0);
  w.size = workspace_bytes(used);  // no part of it is beyond its end
  w.tiles = tiles.value("q: its tiles are");
  w.ticket = workspace_bytes(ticket), w.row_stats = workspace_bytes(row_stats);
  w.dq_accum = workspace_bytes(dq_accum), w.dq_semaphore = workspace_bytes(dq_semaphore);
  return w;
}

// CTAs that run at the same time read the same queries and add to the same dQ if they work on few heads; with more
// heads the long tiles of a causal mask start earlier. As many heads as fit in a part of the L2 cache are a compromise.
// In order, a CTA waits for the key tile before its own: processing all heads at once keeps the two far apart.
int heads_together(const BackwardProblem& p, const BackwardConfig& c) {
  constexpr int64_t kCacheBytes = 24 << 20, kMost = 1 << 20;
  if (c.ordered) return static_cast<int>(std::clamp<int64_t>(p.batch * p.heads_k, 1, kMost));
  const int64_t row = (p.dim_qk + p.dim_v) * size_of(c.element) + p.dim_qk * real_size(c.element);
  const int64_t head = std::max<int64_t>(1, (Checked(p.len_q) * p.group() * row).at_most(kCacheBytes + 1));
  return static_cast<int>(std::clamp<int64_t>(kCacheBytes / head, 1, kMost));
}

// Where fewer queries see later keys, all other CTAs wait for the one that has the first keys of the last heads: enough
// short tiles, and so enough heads, must follow it.
int heads_at_end(const BackwardProblem& p, const BackwardConfig& c, int together) {
  constexpr int64_t kTiles = 264;  // two per SM of the largest GPUs
  const int64_t heads = p.batch * p.heads_k;
  const bool falls = p.window_right != kUnbounded && p.window_left == kUnbounded;
  const int64_t tiles = std::max<int64_t>(1, tiles_in(p.len_k, c.tile_k));
  const int64_t needed = falls ? tiles_in(kTiles, tiles) : 1;
  return static_cast<int>(heads <= needed ? heads : heads - (heads - needed) / together * together);
}

// A small kernel's config leaves out what the kernel does not depend on, so that fewer of them are compiled.
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

BackwardPlan plan_around(const BackwardProblem& p, const Arch& arch, const BackwardConfig& c, bool sums_dq) {
  BackwardPlan plan;
  plan.tile_q = c.tile_q, plan.tile_k = c.tile_k, plan.ordered = c.ordered != 0;
  plan.workspace = workspace_of(p, c, sums_dq);
  plan.heads_together = heads_together(p, c);
  plan.heads_at_end = heads_at_end(p, c, plan.heads_together);

  const Checked query_tiles = Checked(p.batch) * p.heads_q * tiles_in(p.len_q, c.tile_q);
  // This kernel also resets the ticket of the main one, so it has at least one CTA.
  const BackwardConfig prepare = small_config(c, c.dim_qk, c.dim_v);
  plan.prepare = launch_of(key_of(backward_prepare, arch, prepare), query_tiles.at_most(1) == 0 ? 1 : query_tiles,
                           prepare_threads(prepare), 0);
  if (sums_dq) {
    const BackwardConfig finish = small_config(c, c.dim_qk, 0);
    plan.finish = launch_of(key_of(backward_finish, arch, finish), query_tiles, finish_threads(finish), 0);
  }
  if (p.dsink) {
    const BackwardConfig sink = small_config(c, 0, 0);
    plan.sink = launch_of(key_of(backward_sink, arch, sink), p.heads_q, sink_threads(sink), 0);
  }
  return plan;
}

}  // namespace cuflash::cuda
