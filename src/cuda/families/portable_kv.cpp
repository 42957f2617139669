// The portable kernel over a KV cache: mma.sync and cp.async, for every architecture from sm_80 on.
#include "cuda/families/kv_common.h"
#include "cuda/families/params_kv.h"
#include "cuda/families/registry.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kKernel{.name = "kv_attention",
                             .header = "kv/attention.h",
                             .config = "KvConfig",
                             .params = "KvParams",
                             .bounds = "num_threads(C), C.ctas_per_sm",
                             .config_ints = kInts<KvConfig>};
constexpr const KernelType* kKernels[] = {&kKernel};
constexpr int kMaxStages = 4;

constexpr KvTiles kSixteenBit[] = {
    {64, 16, 64, 1, 4, 1, 3},         //
    {64, 32, 64, 2, 2, 1, 3},         //
    {64, 64, 64, 4, 1, 1, 2},         //
    {128, 16, 64, 1, 4, 1, 2},        //
    {128, 16, 64, 1, 4, 1, 1},        //
    {128, 32, 64, 2, 2, 1, 2},        //
    {128, 32, 64, 2, 2, 1, 1},        //
    {128, 64, 64, 4, 1, 1, 2},        //
    {128, 64, 32, 4, 1, 1, 1},        //
    {256, 16, 64, 1, 4, 1, 1},        //
    {256, 16, 32, 1, 2, 2, 1},        //
    {256, 32, 64, 2, 2, 1, 1, true},  //
    {256, 32, 32, 2, 1, 2, 1},        //
    {256, 64, 64, 4, 1, 2, 1},        //
    {576, 16, 32, 1, 2, 2, 1},        //
    {576, 16, 16, 1, 1, 4, 1},        //
    {576, 32, 32, 2, 2, 2, 1},        //
    {576, 64, 32, 4, 1, 2, 1, true},  //
    {576, 16, 16, 1, 1, 2, 1},        // for columns that four warps cannot share
};
constexpr KvTiles kF32[] = {
    {64, 16, 64, 1, 4, 1, 2},   //
    {64, 32, 32, 2, 2, 1, 2},   //
    {64, 64, 32, 4, 1, 1, 2},   //
    {128, 16, 32, 1, 2, 2, 2},  //
    {128, 16, 32, 1, 2, 2, 1},  //
    {128, 32, 32, 2, 2, 1, 1},  //
    {128, 64, 32, 4, 1, 1, 1},  //
    {256, 16, 32, 1, 2, 2, 1},  //
    {256, 16, 16, 1, 1, 4, 1},  //
    {256, 32, 32, 2, 1, 2, 1},  //
    {256, 64, 32, 4, 1, 2, 1},  //
    {576, 16, 16, 1, 1, 4, 1},  //
    {576, 32, 16, 2, 1, 4, 1},  //
    {256, 16, 16, 1, 1, 2, 1},  //
};
constexpr KvTiles kF64[] = {
    {64, 16, 32, 1, 2, 2, 1},   //
    {128, 16, 32, 1, 2, 2, 1},  //
    {128, 16, 16, 1, 1, 4, 1},  //
    {256, 16, 16, 1, 1, 4, 1},  //
    {256, 16, 16, 1, 1, 2, 1},  //
};

std::span<const KvTiles> tiles_of(Element element) {
  if (element == Element::f64) return kF64;
  if (element == Element::f32) return kF32;
  return kSixteenBit;
}

Limits config_limits(const KvConfig& c, const Arch& arch) {
  return has_legal_sizes(c) ? mma_limits(c, arch) : kNoShape;
}

constexpr Tunable<KvConfig> kTunable{"portable", kKvMembers, config_limits};

int copy_of(const CacheProblem& p, const KvConfig& c) {
  if (!has_vector_rows(p.k) || !has_vector_rows(p.v)) return kCopyElements;
  return p.dim_qk == c.dim_qk && (c.v_in_k || p.dim_v == c.dim_v) ? kCopyWhole : kCopyVectors;
}

KvPlan plan(const CacheProblem& p, const PlanTarget& target) {
  KvConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = padded_head_size(p.dim_qk), c.dim_v = padded_head_size(p.dim_v);
  // Products read values in pieces of 16 bytes.
  c.v_in_k = p.v_in_k && column_of_values(p) * size_of(c.element) % 16 == 0;
  c.copy = copy_of(p, c);
  c.options = kv_options(p, c.copy);
  KvPlan plan;
  plan.family = &portable_kv;
  plan.tuned = apply_tuned(kTunable, target.choice, target.arch, c);
  if (!plan.tuned)
    choose_tiles(
        c, p, target.arch, tiles_of(c.element), [](const auto&, const auto&) { return true; },
        [](const auto&, const auto&) { return kMaxStages; });
  plan_splits(plan, p, c, target, ShortSplits::no);
  plan_launch(plan, p, kKernel, c, target.arch);
  return plan;
}

std::string describe(const KvPlan& plan) {
  const auto c = plan.launch.kernel.as<KvConfig>();
  return kv_config_line(c, c.copy == kCopyElements ? "in pieces of any alignment" : "16 bytes at a time");
}

}  // namespace

constinit const KvFamily portable_kv{
    .name = "portable",
    .serves = nullptr,
    .why_not = [](const CacheProblem&, const PlanTarget&) -> const char* { return nullptr; },
    .plan = plan,
    .candidates = [](const CacheProblem& p, const KvPlan& plan,
                     const Arch& arch) { return kv_candidates(kKernel, p, plan, arch); },
    .limits = [](const KernelKey& kernel, const Arch& arch) { return config_limits(kernel.as<KvConfig>(), arch); },
    .choice = [](const KernelKey& kernel) { return choice_of(kTunable, kernel.as<KvConfig>()); },
    .params =
        [](const CacheProblem& p, const KvPlan& plan, const LaunchContext& context, KernelParams& params) {
          params.set([&] { return kv_params(p, plan, context.workspace, context.tile_counts); });
        },
    .describe = describe,
    .kernels = kKernels,
};

}  // namespace cuflash::cuda
