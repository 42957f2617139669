#include "cuda/families/forward_by_kv.h"

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

// Whether the problem has the form of a call over a cache, whose queries are the last positions of their sequence. The
// kernels over a cache support neither packed keys nor options that need the (i, j) of a pair. Without lengths in
// memory, only the kernels for fast decoding know how long a sequence is.
bool is_like_cache(const ForwardProblem& p) {
  const bool aligned_at_end = !p.top_left || (p.window_left >= kUnbounded && p.window_right >= kUnbounded && !p.slopes);
  if (p.packed() || p.bias || p.has_mask() || p.dropout.p > 0 || !aligned_at_end) return false;
  const CacheProblem c = as_cache(p);
  return !sm90_kv.why_not(c) && (p.used_k || is_fast_decode(c));
}

}  // namespace

bool is_worth_kv(const ForwardProblem& p, const Arch& arch) {
  constexpr int64_t kFewKeys = 256, kFewRows = 64, kMaxQueries = 64, kMaxRows = 256;
  if (p.len_q > kMaxQueries || p.len_k < kFewKeys) return false;
  const int64_t rows = p.len_q * p.group();
  // Larger row tiles serve only calls that have enough of them not to split keys.
  const bool fills = p.group() > 1 && rows <= kMaxRows && 2 * row_tiles(as_cache(p), kMaxRows) >= arch.usual_sms;
  return (rows <= kFewRows || fills) && is_like_cache(p);
}

KvPlan plan_by_kv(const ForwardProblem& p, const PlanTarget& target) {
  return sm90_kv.plan(as_cache(p), {.arch = target.arch, .num_sms = target.num_sms, .reduction = target.reduction});
}

void params_by_kv(const ForwardProblem& p, const ForwardPlan& plan, const LaunchContext& context,
                  KernelParams& params) {
  sm90_kv.params(as_cache(p), *plan.kv, context, params);
}

}  // namespace cuflash::cuda
