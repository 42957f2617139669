// Many queries over a KV cache: a small kernel appends the new rows and rotates the queries (kernels/kv/prepare.h), and
// the kernels of sm90_forward attend the cache as a padded problem.
#include "cuda/families/kv_common.h"
#include "cuda/families/params_forward.h"
#include "cuda/families/params_kv.h"
#include "cuda/families/registry.h"
#include "cuda/plan/head_sizes.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kPrepareKernel{.name = "prepare_cache",
                                    .header = "kv/prepare.h",
                                    .config = "CachePrepareConfig",
                                    .params = "CachedForwardParams",
                                    .bounds = "kPrepareThreads",
                                    .config_ints = kInts<CachePrepareConfig>,
                                    .takes_tensor_maps = true};
constexpr const KernelType* kKernels[] = {&kPrepareKernel};
constexpr int64_t kUnit = 256;  // bytes; parts of the workspace begin at a multiple of it

// Rotated queries in the workspace: all heads of a query are adjacent, and rows start on 16-byte boundaries.
Rows rotated_rows(const CacheProblem& p, void* data) {
  const int64_t row = (p.dim_qk + 7) / 8 * 8;
  return {data, p.dtype, p.packed() ? 0 : p.len_q * p.heads_q * row, row, p.heads_q * row};
}

// The padded problem, with a cache only if its rows are found by a table. Until the parts of the workspace are known, it
// has pointers of the call in their place, which no plan follows.
ForwardProblem as_forward(const CacheProblem& p) {
  ForwardProblem f = p;
  if (p.cache.page_size == 0 && !p.cache.entry) f.cache = {};
  f.used_k = p.cache.rows;
  if (p.packed()) f.cu_k = p.cache.rows, f.total_k = p.len_k;
  if (p.rotary) {
    const Rows rotated = rotated_rows(p, nullptr);
    f.q.batch_stride = rotated.batch_stride, f.q.head_stride = rotated.head_stride, f.q.row_stride = rotated.row_stride;
  }
  return f;
}

// Whether anything must be done before the forward kernels run. Otherwise the lengths are those of the call.
bool needs_prepare(const CacheProblem& p) { return p.cache.len_new > 0 || p.rotary || p.packed(); }

// A query tile of the forward kernels has one head, and a row tile of sm90_kv the heads of a group. So that neither is
// mostly empty, there must be more queries than a warpgroup has rows, and more rows than the largest row tile. Packed
// sequences may differ in length, and short ones fill no query tile: their mean decides.
bool has_many_rows(const CacheProblem& p) {
  constexpr int64_t kLargestRowTile = 256;
  if (p.len_q <= kWarpgroupRows || p.len_q * p.group() <= kLargestRowTile) return false;
  return !p.packed() || p.total_q > kWarpgroupRows * p.batch;
}

const char* why_not(const CacheProblem& p, const PlanTarget& target) {
  if (!has_many_rows(p))
    return "it is for more than 64 queries per sequence, and more than 256 rows (queries of a group's heads)";
  if (p.num_splits != 0) return "a fixed number of splits needs tiles that do not depend on the batch";
  if (!target.has_workspace) return "it needs a workspace";
  if (std::max(p.dim_qk, p.dim_v) > kLargestHeadSize) return "its kernels take head sizes up to 256";
  if (p.cache.page_size % 8 != 0) return "TMA loads need pages whose size is a multiple of 8";
  if (p.cache.leftpad) return "its kernels take a cache without left padding";
  return sm90_forward.why_not(as_forward(p), target);
}

// CTAs that share the new rows and the queries of a sequence and a key/value head.
int64_t prepare_ctas(const CacheProblem& p) {
  constexpr int64_t kRowsOfCta = 64;  // four pieces of 16 bytes per thread at head size 128
  const int64_t rows = std::max(p.cache.len_new, p.rotary ? p.len_q * p.group() : 0);
  return std::max<int64_t>(1, (rows + kRowsOfCta - 1) / kRowsOfCta);
}

KvPlan plan(const CacheProblem& p, const PlanTarget& target) {
  const ForwardPlan of_forward =
      sm90_forward.plan(as_forward(p), {.arch = target.arch, .num_sms = target.num_sms, .reduction = target.reduction});
  KvPlan plan;
  plan.family = &sm90_kv_by_forward;
  plan.reason = "many queries: the forward kernels attend the cache as a padded problem";
  plan.tile_q = of_forward.tile_q, plan.tile_k = of_forward.tile_k;
  plan.launch = of_forward.launch, plan.splits = plan.base_splits = of_forward.splits;
  CachedForward& f = plan.forward.emplace();
  f.list = of_forward.list, f.combine = of_forward.combine;
  f.packed_heads = of_forward.packed_heads, f.workspace = of_forward.workspace;
  if (!needs_prepare(p)) {
    plan.workspace.size = f.workspace.size;
    return plan;
  }
  f.prepare = launch_of(key_of(kPrepareKernel, target.arch, CachePrepareConfig{element_of(p.dtype)}),
                        Checked(p.batch) * p.heads_k * prepare_ctas(p), kPrepareThreads, 0);
  const Checked lengths = round_up(Checked(static_cast<int64_t>(f.workspace.size)), kUnit);
  const Checked first_rows = round_up(lengths + p.batch * int64_t{sizeof(int)}, kUnit);
  const Checked rotated_q = round_up(first_rows + (p.batch + 1) * int64_t{sizeof(int)}, kUnit);
  const Checked rows = Checked(p.packed() ? p.total_q : p.batch * p.len_q) * rotated_rows(p, nullptr).row_stride;
  f.lengths = workspace_bytes(lengths), f.first_rows = workspace_bytes(first_rows);
  f.rotated_q = workspace_bytes(rotated_q);
  plan.workspace.size = workspace_bytes(p.rotary ? rotated_q + rows * size_of(element_of(p.dtype)) : rotated_q);
  return plan;
}

CachedForwardParams params_of(const CacheProblem& p, const KvPlan& plan, const LaunchContext& context) {
  const CachedForward& f = *plan.forward;
  ForwardPlan of_forward;
  of_forward.tile_q = plan.tile_q, of_forward.tile_k = plan.tile_k;
  of_forward.list = f.list, of_forward.launch = plan.launch, of_forward.combine = f.combine;
  of_forward.splits = plan.splits, of_forward.packed_heads = f.packed_heads, of_forward.workspace = f.workspace;
  CachedForwardParams params{};
  ForwardProblem problem = as_forward(p);
  if (f.prepare.grid_x != 0) {
    const auto part = [&](size_t offset) { return static_cast<std::byte*>(context.workspace) + offset; };
    params.cache = kv_params(p, {}, nullptr, nullptr);
    params.cache.row_tiles = 1, params.cache.splits = as_int(prepare_ctas(p));
    params.lengths = reinterpret_cast<int*>(part(f.lengths));
    params.first_rows = reinterpret_cast<int*>(part(f.first_rows));
    problem.used_k = params.lengths;
    if (p.packed()) problem.cu_k = params.first_rows;
    if (p.rotary) {
      const Rows rotated = rotated_rows(p, part(f.rotated_q));
      params.rotated_q = view_of(rotated);
      problem.q.data = rotated.data;
    }
  }
  KernelParams forward;
  sm90_forward.params(problem, of_forward, context, forward);
  params.forward = *static_cast<const Sm90ForwardParams*>(forward.data());
  return params;
}

std::string describe(const KvPlan& plan) {
  ForwardPlan of_forward;
  of_forward.launch = plan.launch;
  return sm90_forward.describe(of_forward);
}

}  // namespace

// The tuner does not tune it: a call's choice is that of sm90_kv.
constinit const KvFamily sm90_kv_by_forward{
    .name = "sm90_forward",
    .serves = serves_sm90,
    .serves_only = kServesSm90,
    .why_not = why_not,
    .plan = plan,
    .candidates = [](const CacheProblem&, const KvPlan&, const Arch&) -> std::vector<Alternatives> { return {}; },
    .limits = [](const KernelKey& kernel, const Arch& arch) { return sm90_forward.limits(kernel, arch); },
    .choice = [](const KernelKey& kernel) { return sm90_forward.choice(kernel); },
    .params = [](const CacheProblem& p, const KvPlan& plan, const LaunchContext& context,
                 KernelParams& params) { params.set([&] { return params_of(p, plan, context); }); },
    .describe = describe,
    .kernels = kKernels,
};

}  // namespace cuflash::cuda
