// The portable backward kernels: mma.sync and cp.async, for every architecture from sm_80 on. A CTA keeps a tile of
// keys, visits the queries that see them, and adds its part of dQ to sums in the workspace.
//
// Every config of the tables compiles without spills for every load it is listed for
// (tests/cuda/jit/cuda_kernels_test).
#include <algorithm>
#include <span>
#include <utility>

#include "cuda/families/params_backward.h"
#include "cuda/families/registry.h"
#include "cuda/plan/backward_common.h"
#include "cuda/plan/tuned_config.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kMain{.name = "backward",
                           .header = "portable/backward.h",
                           .config = "BackwardConfig",
                           .params = "BackwardParams",
                           .bounds = "num_threads(C), C.ctas_per_sm",
                           .config_ints = kInts<BackwardConfig>};
constexpr KernelType kBiasKernel{.name = "backward_bias",
                                 .header = "portable/backward_bias.h",
                                 .config = "BackwardConfig",
                                 .params = "BackwardParams",
                                 .bounds = "bias_threads(C), C.ctas_per_sm",
                                 .config_ints = kInts<BackwardConfig>};
constexpr const KernelType* kKernels[] = {&backward_prepare, &kMain, &backward_finish, &kBiasKernel, &backward_sink};

struct Tiles {
  int largest_dim;  // largest head size of queries and keys, and of values
  int tile_q, tile_k, key_warps, column_warps, stages, ctas_per_sm;
  Load most;
};

using enum Load;
// The first entry that fits is used: wide tiles come first for 227 KB of shared memory (sm_90, sm_100), then for 163 KB
// (sm_80) and 99 KB (sm_86, sm_89, sm_120).
constexpr Tiles kSixteenBit[] = {
    {64, 64, 128, 4, 1, 2, 2, one_option},    //
    {64, 64, 64, 4, 1, 2, 2, every_option},   //
    {128, 64, 128, 4, 2, 2, 1, one_option},   //
    {128, 64, 128, 4, 2, 1, 1, one_option},   //
    {128, 32, 64, 4, 1, 2, 2, every_option},  //
    {256, 64, 64, 2, 4, 2, 1, partial_rows},  //
    {256, 64, 64, 2, 4, 1, 1, partial_rows},  //
    {256, 64, 32, 2, 4, 2, 1, every_option},  //
    {256, 32, 32, 2, 4, 1, 1, every_option},  //
};
constexpr Tiles kF32[] = {
    {64, 32, 64, 4, 1, 2, 2, every_option},   //
    {128, 32, 64, 4, 2, 1, 1, every_option},  //
    {128, 32, 32, 2, 2, 1, 1, every_option},  //
    {256, 32, 32, 2, 4, 1, 1, every_option},  //
    {256, 16, 16, 1, 4, 1, 1, every_option},  //
};
constexpr Tiles kF64[] = {
    {64, 32, 64, 4, 1, 1, 1, every_option},   //
    {64, 16, 32, 2, 2, 1, 1, every_option},   //
    {128, 16, 32, 2, 2, 1, 1, every_option},  //
    {128, 16, 16, 1, 4, 1, 1, every_option},  //
    {256, 16, 32, 2, 4, 1, 1, every_option},  //
    {256, 16, 16, 1, 8, 1, 1, every_option},  //
    {256, 16, 16, 1, 8, 0, 1, every_option},  //
};

std::span<const Tiles> tiles_of(Element element) {
  if (element == Element::f64) return kF64;
  if (element == Element::f32) return kF32;
  return kSixteenBit;
}

// The register load of a config. A mask tensor, or copies element by element, need as many addresses as all options
// together.
Load load_of(const BackwardConfig& c) {
  if (c.options == kAllOptions || c.options == kMaskTensor || c.copy == kCopyElements) return every_option;
  return c.options == 0 ? partial_rows : one_option;
}

const char* reason_of(const BackwardConfig& c) {
  if (c.ordered) return "dQ is summed in the order of the keys: deterministic was requested";
  if (c.copy == kCopyElements) return "rows that do not start on 16-byte boundaries are copied element by element";
  if (c.options == kAllOptions) return "the kernel with every option: several are given";
  if (c.options != 0) return "a kernel for the one option that is given";
  return "the largest tiles whose sums stay in registers";
}

// Whether dQ must be summed in key order. A sum with a single term needs no order.
bool needs_order(const BackwardProblem& p, const BackwardConfig& c, Reproducible reproducible) {
  return reproducible == Reproducible::yes && p.dq && tiles_in(p.len_k, c.tile_k) > 1;
}

// Whether to compile for all gradients. The products then have no branch between them, and loads hide behind other
// products, which is 3 to 5% faster if there are enough registers (docs/lab/portable.md).
bool gains_from_all_gradients(const BackwardConfig& c) {
  return size_of(c.element) == 2 && c.column_warps > 1 && c.stages == 2 && c.options == 0 && !c.ordered;
}

void finish(BackwardConfig& c, const BackwardProblem& p, Reproducible reproducible) {
  c.ordered = needs_order(p, c, reproducible);
  c.all_gradients = p.dq && p.dk && p.dv && gains_from_all_gradients(c);
}

Limits config_limits(const BackwardConfig& c, const Arch& arch) {
  if (!is_tile(c.tile_q) || c.tile_q > 64 || !is_tile(c.tile_k) || !are_warps(c.key_warps) ||
      !are_warps(c.column_warps) || c.stages < 0 || c.stages > 3 || !has_warps(num_threads(c), c.ctas_per_sm))
    return kNoShape;
  const int keys = c.tile_k / c.key_warps;
  const int score_warps = std::min(c.column_warps, c.tile_q / 16), queries = c.tile_q / score_warps;
  const int at_once = std::min(queries, c.element == Element::f64 || c.options != 0 ? 16 : 32);
  const int blocks =
      (c.dim_qk / 16 + c.column_warps - 1) / c.column_warps + (c.dim_v / 16 + c.column_warps - 1) / c.column_warps;
  const bool shape = c.tile_k % (16 * c.key_warps) == 0 && (c.stages > 0 || queries == at_once);
  const int registers =
      sum_registers(c.element, keys, 16 * blocks) + sum_registers(c.element, keys, 2 * at_once) + kOtherRegisters;
  return limits_with(shape, shared_bytes(c), c.ctas_per_sm, arch, registers,
                     registers_of(num_threads(c), c.ctas_per_sm));
}

using Member = Tunable<BackwardConfig>::Member;
constexpr Member kMembers[] = {{&tuned::Choice::tile_q, &BackwardConfig::tile_q},
                               {&tuned::Choice::tile_k, &BackwardConfig::tile_k},
                               {&tuned::Choice::key_warps, &BackwardConfig::key_warps},
                               {&tuned::Choice::column_warps, &BackwardConfig::column_warps},
                               {&tuned::Choice::stages, &BackwardConfig::stages},
                               {&tuned::Choice::ctas_per_sm, &BackwardConfig::ctas_per_sm}};
constexpr Tunable<BackwardConfig> kTunable{"portable", kMembers, config_limits};

// Sets the first tiles of the table that fit; if tile_q is not 0, only tiles with that number of queries.
bool take_tiles(BackwardConfig& c, const BackwardProblem& p, const PlanTarget& target, int tile_q = 0) {
  for (const Tiles& t : tiles_of(c.element)) {
    if (c.dim_qk > t.largest_dim || c.dim_v > t.largest_dim || load_of(c) > t.most) continue;
    if (tile_q != 0 && t.tile_q != tile_q) continue;
    c.tile_q = t.tile_q, c.tile_k = t.tile_k, c.key_warps = t.key_warps, c.column_warps = t.column_warps;
    c.stages = t.stages, c.ctas_per_sm = t.ctas_per_sm;
    finish(c, p, target.reproducible);
    if (shared_bytes(c) <= target.arch.shared_per_block) return true;
  }
  return false;
}

BackwardConfig config_without_tiles(const BackwardProblem& p) {
  BackwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = padded_head_size(p.dim_qk), c.dim_v = padded_head_size(p.dim_v);
  const bool vectors = p.dout.dtype == p.dtype && has_vector_rows(p.q) && has_vector_rows(p.k) &&
                       has_vector_rows(p.v) && has_vector_rows(p.dout);
  const CopyMode copy = copy_mode(p, vectors);
  c.copy = copy;
  c.options = portable_options(p, copy);
  return c;
}

// The config, and whether it is the tuned choice.
std::pair<BackwardConfig, bool> config_for(const BackwardProblem& p, const PlanTarget& target) {
  const Arch& arch = target.arch;
  BackwardConfig c = config_without_tiles(p);
  if (apply_tuned(kTunable, target.choice, arch, c)) {
    finish(c, p, target.reproducible);
    return {c, true};
  }
  if (take_tiles(c, p, target)) return {c, false};
  refuse(join("no backward kernel of ", name_of(p.dtype), " with head sizes ", p.dim_qk, " and ", p.dim_v,
              " fits the shared memory of ", target_of(arch)));
}

Launch bias_launch_of(const BackwardProblem& p, const Arch& arch, const BackwardConfig& main) {
  BackwardConfig c = main;
  c.stages = std::min(c.stages, 1), c.ordered = 0, c.all_gradients = 0;
  const Checked heads = Checked(p.bias_batch) * p.bias_heads;
  const Checked tiles = heads * tiles_in(p.bias_len_q, c.tile_q) * tiles_in(p.bias_len_k, c.tile_k);
  return launch_of(key_of(kBiasKernel, arch, c), tiles, bias_threads(c), shared_bytes(c));
}

BackwardPlan plan(const BackwardProblem& p, const PlanTarget& target) {
  const Arch& arch = target.arch;
  const auto [c, tuned] = config_for(p, target);
  BackwardPlan plan = plan_around(p, arch, c, {.dq = bool{p.dq}});
  plan.family = &portable_backward;
  plan.reason = tuned ? kTunedReason : reason_of(c);
  plan.tuned = tuned;
  plan.main = launch_of(key_of(kMain, arch, c), key_tiles(p, c.tile_k), num_threads(c), shared_bytes(c));
  if (p.dbias) plan.bias = bias_launch_of(p, arch, c);
  return plan;
}

std::vector<Alternatives> candidates(const BackwardProblem&, const BackwardPlan& plan, const Arch& arch) {
  struct Lists {
    std::vector<int> tile_q, tile_k;
  };
  BackwardConfig c = plan.main.kernel.as<BackwardConfig>();
  const Lists lists = c.element == Element::f64   ? Lists{{16, 32}, {16, 32, 64}}
                      : c.element == Element::f32 ? Lists{{16, 32, 64}, {32, 64}}
                                                  : Lists{{32, 64}, {32, 64, 128}};
  std::vector<Alternatives> all;
  for (const int tile_q : lists.tile_q)
    for (const int tile_k : lists.tile_k)
      for (const int key_warps : {1, 2, 4})
        for (const int column_warps : {1, 2, 4, 8})
          for (const int stages : {1, 2}) {
            if (key_warps * column_warps > 8 || tile_k > 32 * key_warps) continue;
            c.tile_q = tile_q, c.tile_k = tile_k, c.key_warps = key_warps, c.column_warps = column_warps;
            c.stages = stages;
            Alternatives& alternatives = all.emplace_back();
            for (const int ctas : {2, 1}) {
              c.ctas_per_sm = ctas;
              if (ctas == 1 || has_spare_registers(config_limits(c, arch)))
                alternatives.push_back(key_of(kMain, arch, c));
            }
          }
  return all;
}

}  // namespace

Launch bias_launch(const BackwardProblem& p, const Arch& arch, int tile_q) {
  BackwardConfig c = config_without_tiles(p);
  if (!take_tiles(c, p, {.arch = arch}, tile_q)) refuse("no dBias kernel fits the shared memory");
  return bias_launch_of(p, arch, c);
}

constinit const BackwardFamily portable_backward{
    .name = "portable",
    .serves = nullptr,
    .why_not = [](const BackwardProblem&, const PlanTarget&) -> const char* { return nullptr; },
    .plan = plan,
    .candidates = candidates,
    .limits = [](const KernelKey& kernel,
                 const Arch& arch) { return config_limits(kernel.as<BackwardConfig>(), arch); },
    .choice = [](const KernelKey& kernel) { return choice_of(kTunable, kernel.as<BackwardConfig>()); },
    .params =
        [](const BackwardProblem& p, const BackwardPlan& plan, const LaunchContext& context, KernelParams& params) {
          params.set([&] { return backward_params(p, plan, context.workspace, context.tile_counts); });
        },
    .describe = [](const BackwardPlan& plan) { return portable_config_line(plan.main.kernel.as<BackwardConfig>()); },
    .kernels = kKernels,
    .reads_mask_summary = true,
};

}  // namespace cuflash::cuda
