// Tiles of the backward kernels. Every candidate compiles without spills for every option it is listed for
// (tests/cuda_kernels_test).
#include <algorithm>
#include <span>
#include <utility>

#include "cuda/families/plan_common.h"
#include "cuda/families/sm90_forward.h"
#include "cuda/families/tuned_config.h"
#include "error.h"

namespace cuflash::cuda {

namespace {

// What is needed beside the sums, in registers: nothing; one option; or what takes many addresses, that is a mask tensor,
// all options at once, copies element by element.
enum Load { plain = 0, light = 1, heavy = 2 };

struct Tiles {
  int largest_dim;  // of queries and keys, and of values
  int tile_q, tile_k, key_warps, column_warps, stages, ctas_per_sm;
  Load most;
};

// The first that fits is taken: wide tiles for much shared memory (sm_90, sm_100: 227 KB), then for 163 KB (sm_80) and for
// 99 KB (sm_86, sm_89, sm_120).
constexpr Tiles kSixteenBit[] = {
    {64, 64, 128, 4, 1, 2, 2, light},   //
    {64, 64, 64, 4, 1, 2, 2, heavy},    //
    {128, 64, 128, 4, 2, 2, 1, light},  //
    {128, 64, 128, 4, 2, 1, 1, light},  //
    {128, 32, 64, 4, 1, 2, 2, heavy},   //
    {256, 64, 64, 2, 4, 2, 1, plain},   //
    {256, 64, 64, 2, 4, 1, 1, plain},   //
    {256, 64, 32, 2, 4, 2, 1, heavy},   //
    {256, 32, 32, 2, 4, 1, 1, heavy},   //
};
constexpr Tiles kF32[] = {
    {64, 32, 64, 4, 1, 2, 2, heavy},   //
    {128, 32, 64, 4, 2, 1, 1, heavy},  //
    {128, 32, 32, 2, 2, 1, 1, heavy},  //
    {256, 32, 32, 2, 4, 1, 1, heavy},  //
    {256, 16, 16, 1, 4, 1, 1, heavy},  //
};
constexpr Tiles kF64[] = {
    {64, 32, 64, 4, 1, 1, 1, heavy},   //
    {64, 16, 32, 2, 2, 1, 1, heavy},   //
    {128, 16, 32, 2, 2, 1, 1, heavy},  //
    {128, 16, 16, 1, 4, 1, 1, heavy},  //
    {256, 16, 32, 2, 4, 1, 1, heavy},  //
    {256, 16, 16, 1, 8, 1, 1, heavy},  //
    {256, 16, 16, 1, 8, 0, 1, heavy},  //
};

std::span<const Tiles> candidates(Element element) {
  if (element == Element::f64) return kF64;
  if (element == Element::f32) return kF32;
  return kSixteenBit;
}

Load load_of(const BackwardConfig& c) {
  if (c.options == kAllOptions || c.options == kMaskTensor || c.copy == kCopyElements) return heavy;
  return c.options == 0 ? plain : light;
}

const char* reason_of(const BackwardConfig& c) {
  if (c.ordered) return "dQ is summed in the order of the keys: deterministic was asked for";
  if (c.copy == kCopyElements) return "rows that do not start on 16-byte boundaries are copied element by element";
  if (c.options == kAllOptions) return "the kernel with every option: several are given";
  if (c.options != 0) return "a kernel for the one option that is given";
  return "the largest tiles whose sums stay in registers";
}

int64_t tiles_in(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }
int64_t real_size(Element element) { return element == Element::f64 ? 8 : 4; }

// One deterministic sum needs no order.
bool needs_order(const BackwardProblem& p, const BackwardConfig& c, Reproducible reproducible) {
  return reproducible == Reproducible::yes && p.dq && tiles_in(p.len_k, c.tile_k) > 1;
}

// Without a branch between them the products are one stretch of code, in which reads hide behind other products: 3 to 5%
// where registers are left for it (docs/log.md).
bool gains_from_one_stretch(const BackwardConfig& c) {
  return size_of(c.element) == 2 && c.column_warps > 1 && c.stages == 2 && c.options == 0 && !c.ordered;
}

void finish(BackwardConfig& c, const BackwardProblem& p, Reproducible reproducible) {
  c.ordered = needs_order(p, c, reproducible);
  c.all_gradients = p.dq && p.dk && p.dv && gains_from_one_stretch(c);
}

// Its config, and whether it is the choice.
std::pair<BackwardConfig, bool> config_of(const BackwardProblem& p, const Arch& arch, Reproducible reproducible,
                                          const tuned::Choice* choice) {
  BackwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = padded_dim(p.dim_qk), c.dim_v = padded_dim(p.dim_v);
  const bool vectors = p.dout.dtype == p.dtype && has_vector_rows(p.q) && has_vector_rows(p.k) &&
                       has_vector_rows(p.v) && has_vector_rows(p.dout);
  const CopyMode copy = copy_mode(p, vectors);
  c.copy = copy;
  c.options = kernel_options(p, copy);
  if (apply_tuned(choice, arch, c)) {
    finish(c, p, reproducible);
    return {c, true};
  }
  for (const Tiles& t : candidates(c.element)) {
    if (c.dim_qk > t.largest_dim || c.dim_v > t.largest_dim || load_of(c) > t.most) continue;
    c.tile_q = t.tile_q, c.tile_k = t.tile_k, c.key_warps = t.key_warps, c.column_warps = t.column_warps;
    c.stages = t.stages, c.ctas_per_sm = t.ctas_per_sm;
    finish(c, p, reproducible);
    if (shared_bytes(c) <= arch.shared_per_block) return {c, false};
  }
  throw FlashAttentionError(CUFLASH_UNSUPPORTED,
                            join("no backward kernel of ", name_of(p.dtype), " with head sizes ", p.dim_qk, " and ",
                                 p.dim_v, " fits the shared memory of ", target_of(arch)));
}

BackwardWorkspace workspace_of(const BackwardProblem& p, const BackwardConfig& c, bool sums_dq) {
  BackwardWorkspace w;
  w.packed_tiles = p.total_q / c.tile_q + p.batch;
  w.dq_rows = sums_dq ? static_cast<int>(std::min<int64_t>(c.tile_q, tiles_in(p.len_q, 16) * 16)) : 0;
  const Checked tiles = (p.packed() ? w.packed_tiles : Checked(p.batch) * tiles_in(p.len_q, c.tile_q)) * p.heads_q;
  Checked used = 64;  // the counters of tiles
  const auto take = [&](const Checked& bytes) {
    const Checked offset = used;
    used = round_up(used + bytes, 64);
    return offset;
  };
  const Checked ticket = take(sizeof(uint64_t));
  const Checked row_stats = take(tiles * row_stats_bytes(c));
  const Checked dq_accum = take(tiles * w.dq_rows * c.dim_qk * real_size(c.element));
  const Checked dq_semaphore = take(c.ordered ? tiles * int64_t{sizeof(unsigned)} : 0);
  w.size = workspace_bytes(used);  // and no part of it is beyond its end
  w.tiles = tiles.value("q: its tiles are");
  w.ticket = workspace_bytes(ticket), w.row_stats = workspace_bytes(row_stats);
  w.dq_accum = workspace_bytes(dq_accum), w.dq_semaphore = workspace_bytes(dq_semaphore);
  return w;
}

// CTAs that run at the same time read the same queries and add to the same dQ if they belong to few heads; with more heads
// the long tiles of a causal mask start earlier. As many heads as fit into a part of an L2 cache are a compromise. In
// order, a CTA waits for the tile of keys before its own: all heads at once keep those far apart.
int heads_together(const BackwardProblem& p, const BackwardConfig& c) {
  constexpr int64_t kCacheBytes = 24 << 20, kMost = 1 << 20;
  if (c.ordered) return static_cast<int>(std::clamp<int64_t>(p.batch * p.heads_k, 1, kMost));
  const int64_t row = (p.dim_qk + p.dim_v) * size_of(c.element) + p.dim_qk * real_size(c.element);
  const int64_t head = std::max<int64_t>(1, (Checked(p.len_q) * p.group() * row).at_most(kCacheBytes + 1));
  return static_cast<int>(std::clamp<int64_t>(kCacheBytes / head, 1, kMost));
}

// Where later keys are seen by fewer queries, a CTA that has the first keys of the last heads is waited for by all others:
// there have to be enough short tiles behind it, and so enough heads.
int heads_at_end(const BackwardProblem& p, const BackwardConfig& c, int together) {
  constexpr int64_t kTiles = 264;  // two for each multiprocessor of the largest GPUs
  const int64_t heads = p.batch * p.heads_k;
  const bool falls = p.window_right != kUnbounded && p.window_left == kUnbounded;
  const int64_t tiles = std::max<int64_t>(1, tiles_in(p.len_k, c.tile_k));
  const int64_t needed = falls ? tiles_in(kTiles, tiles) : 1;
  return static_cast<int>(heads <= needed ? heads : heads - (heads - needed) / together * together);
}

// The same config, without what a small kernel does not depend on: so fewer of them are compiled.
BackwardConfig small_config(const BackwardConfig& c, int dim_qk, int dim_v) {
  BackwardConfig small{};
  small.element = c.element, small.dim_qk = dim_qk, small.dim_v = dim_v, small.tile_q = c.tile_q;
  return small;
}

// All but the main kernel; what the others know of its config. sums_dq: dQ is summed in the workspace.
BackwardPlan plan_around(const BackwardProblem& p, const Arch& arch, const BackwardConfig& c, bool sums_dq) {
  BackwardPlan plan{};
  plan.tile_q = c.tile_q, plan.tile_k = c.tile_k, plan.ordered = c.ordered != 0;
  plan.workspace = workspace_of(p, c, sums_dq);
  plan.heads_together = heads_together(p, c);
  plan.heads_at_end = heads_at_end(p, c, plan.heads_together);

  const Checked query_tiles = Checked(p.batch) * p.heads_q * tiles_in(p.len_q, c.tile_q);
  // It sets the ticket of the ordered kernel, too, so it has at least one CTA.
  const BackwardConfig prepare = small_config(c, c.dim_qk, c.dim_v);
  plan.prepare = launch_of(key_of(KernelKind::backward_prepare, arch, prepare),
                           query_tiles.at_most(1) == 0 ? 1 : query_tiles, prepare_threads(prepare), 0);
  if (sums_dq) {
    const BackwardConfig finish = small_config(c, c.dim_qk, 0);
    plan.finish = launch_of(key_of(KernelKind::backward_finish, arch, finish), query_tiles, finish_threads(finish), 0);
  }
  if (p.dsink) {
    const BackwardConfig sink = small_config(c, 0, 0);
    plan.sink = launch_of(key_of(KernelKind::backward_sink, arch, sink), p.heads_q, sink_threads(sink), 0);
  }
  return plan;
}

Checked key_tiles(const BackwardProblem& p, int tile_k) {
  return p.dq || p.dk || p.dv ? Checked(p.batch) * p.heads_k * tiles_in(p.len_k, tile_k) : 0;
}

BackwardPlan plan_portable(const BackwardProblem& p, const Arch& arch, Reproducible reproducible,
                           const tuned::Choice* choice) {
  const auto [c, tuned] = config_of(p, arch, reproducible, choice);
  BackwardPlan plan = plan_around(p, arch, c, bool{p.dq});
  plan.config = c;
  plan.reason = tuned ? kTunedReason : reason_of(c);
  plan.tuned = tuned;
  plan.main = launch_of(key_of(KernelKind::backward, arch, c), key_tiles(p, c.tile_k), num_threads(c), shared_bytes(c));
  if (p.dbias) {
    BackwardConfig bias = c;
    bias.stages = std::min(c.stages, 1), bias.ordered = 0, bias.all_gradients = 0;
    const Checked heads = Checked(p.bias_batch) * p.bias_heads;
    const Checked tiles = heads * tiles_in(p.bias_len_q, c.tile_q) * tiles_in(p.bias_len_k, c.tile_k);
    plan.bias = launch_of(key_of(KernelKind::backward_bias, arch, bias), tiles, bias_threads(bias), shared_bytes(bias));
  }
  return plan;
}

const char* reason_of(const Sm90BackwardChoice& choice, bool main) {
  if (choice.tuned && main) return kTunedReason;
  if (choice.dq && main)
    return "warpgroup products and tensor copies of Hopper; dQ in one order, by a kernel of its own";
  if (choice.dq) return "warpgroup products and tensor copies of Hopper; dQ alone";
  return choice.main.dq ? "warpgroup products and tensor copies of Hopper"
                        : "warpgroup products and tensor copies of Hopper; no dQ";
}

BackwardPlan plan_sm90(const BackwardProblem& p, const Arch& arch, const Sm90BackwardChoice& choice) {
  const Sm90BackwardConfig& c = choice.main;
  const bool main = c.dq || p.dk || p.dv;
  BackwardPlan plan = plan_around(p, arch, shared_config(c), c.dq != 0);
  plan.config = c;
  plan.tuned = choice.tuned && main;
  plan.reason = reason_of(choice, main);
  if (main)
    plan.main = launch_of(key_of(KernelKind::sm90_backward, arch, c), key_tiles(p, tile_k_of(c)), num_threads(c),
                          shared_bytes(c));
  plan.main.persistent = main;
  if (choice.dq) {
    const Sm90DqConfig& dq = plan.dq_config = *choice.dq;
    const Checked tiles = Checked(p.batch) * p.heads_q * tiles_in(p.len_q, tile_q_of(dq));
    plan.dq = launch_of(key_of(KernelKind::sm90_dq, arch, dq), tiles, num_threads(dq), shared_bytes(dq));
    plan.dq.persistent = true;
    if (!main) plan.tile_k = dq.tile_k;
  }
  return plan;
}

}  // namespace

BackwardPlan plan_backward(const BackwardProblem& p, const Arch& arch, Reproducible reproducible, Kernels kernels,
                           const tuned::Choice* choice) {
  require_supported(p);
  if (kernels == Kernels::portable || arch.number() != 90) return plan_portable(p, arch, reproducible, choice);
  const Sm90BackwardChoice hopper = choose_sm90_backward(p, arch, reproducible, choice);
  if (!hopper.why_not) return plan_sm90(p, arch, hopper);
  BackwardPlan plan = plan_portable(p, arch, reproducible, choice);
  plan.not_sm90 = hopper.why_not;
  return plan;
}

}  // namespace cuflash::cuda
