// Few queries: treats a forward problem as one over a KV cache that holds all keys. The kernels of sm90_kv take the
// heads of a group as rows of one tile, so that keys are read once for all of them, and split the keys.
#include "cuda/families/kv_common.h"
#include "cuda/families/registry.h"

namespace cuflash::cuda {
namespace {

CacheProblem as_cache(const ForwardProblem& p) {
  CacheProblem c;
  static_cast<ForwardProblem&>(c) = p;
  c.cache.rows = p.used_k, c.used_k = nullptr;  // none: every sequence fills its cache
  c.cache.entries = p.batch;
  return c;
}

// Whether the call has so few rows that those kernels are faster.
bool has_few_rows(const ForwardProblem& p, const Arch& arch) {
  constexpr int64_t kFewKeys = 256, kFewRows = 64, kMaxQueries = 64, kMaxRows = 256;
  if (p.len_q > kMaxQueries || p.len_k < kFewKeys) return false;
  const int64_t rows = p.len_q * p.group();
  // Larger row tiles are only for calls with so many of them that keys need not be split.
  const bool fills = p.group() > 1 && rows <= kMaxRows && 2 * row_tiles(as_cache(p), kMaxRows) >= arch.usual_sms;
  return rows <= kFewRows || fills;
}

const char* why_not(const ForwardProblem& p, const PlanTarget& target) {
  if (!has_few_rows(p, target.arch))
    return "it is for up to 64 rows (queries of a group's heads) over 256 keys or more";
  if (!target.has_workspace) return "its splits of the keys need a workspace";
  if (const char* reason = sm90_forward.why_not(p, target)) return reason;
  if (p.packed() || p.bias || p.has_mask() || p.dropout.p > 0)
    return "its kernel has no packed keys, bias, mask or dropout";
  // Queries of a cache are the last positions of their sequence.
  const bool aligned_at_end = !p.top_left || (p.window_left >= kUnbounded && p.window_right >= kUnbounded && !p.slopes);
  if (!aligned_at_end) return "its queries are the last positions, and here they are the first";
  const CacheProblem c = as_cache(p);
  if (const char* reason = sm90_kv.why_not(c, target)) return reason;
  // Without lengths in memory, only the kernels for fast decoding know how long a sequence is.
  return p.used_k || is_fast_decode(c) ? nullptr : "its kernel without seqlens_k does not take such queries or outputs";
}

ForwardPlan plan(const ForwardProblem& p, const PlanTarget& target) {
  ForwardPlan plan;
  plan.family = &sm90_forward_by_kv;
  plan.kv = sm90_kv.plan(as_cache(p), {.arch = target.arch, .num_sms = target.num_sms, .reduction = target.reduction});
  plan.reason = "few queries: the kernel over a KV cache takes the heads of a group as rows and splits the keys";
  plan.tile_q = plan.kv->tile_q, plan.tile_k = plan.kv->tile_k;
  plan.launch = plan.kv->launch, plan.splits = plan.kv->splits;
  plan.workspace.size = plan.kv->workspace.size;
  return plan;
}

}  // namespace

// The tuner does not tune it: a forward call's choice is that of sm90_forward.
constinit const ForwardFamily sm90_forward_by_kv{
    .name = "sm90_kv",
    .serves = serves_sm90,
    .serves_only = kServesSm90,
    .why_not = why_not,
    .plan = plan,
    .candidates = [](const ForwardProblem&, const ForwardPlan&, const Arch&) -> std::vector<Alternatives> {
      return {};
    },
    .limits = [](const KernelKey& kernel, const Arch& arch) { return sm90_kv.limits(kernel, arch); },
    .choice = [](const KernelKey& kernel) { return sm90_kv.choice(kernel); },
    .params = [](const ForwardProblem& p, const ForwardPlan& plan, const LaunchContext& context,
                 KernelParams& params) { sm90_kv.params(as_cache(p), *plan.kv, context, params); },
    .describe = [](const ForwardPlan& plan) { return sm90_kv.describe(*plan.kv); },
    .kernels = {},  // those of sm90_kv
};

}  // namespace cuflash::cuda
