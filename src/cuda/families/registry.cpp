#include "cuda/families/registry.h"

#include "cuda/jit/program.h"
#include "cuda/plan/plan_common.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

// The first family that serves the architecture and accepts the problem makes the plan. The portable ones come last:
// they serve every architecture and accept every problem, or throw if no kernel can compute it.
constexpr const ForwardFamily* kForward[] = {&sm90_forward_by_kv, &sm90_forward, &portable_forward};
constexpr const BackwardFamily* kBackward[] = {&sm90_backward, &portable_backward};
constexpr const KvFamily* kKv[] = {&sm90_kv_by_forward, &sm90_kv, &portable_kv};
std::span<const ForwardFamily* const> families_for(const ForwardProblem&) { return kForward; }
std::span<const BackwardFamily* const> families_for(const BackwardProblem&) { return kBackward; }
std::span<const KvFamily* const> families_for(const CacheProblem&) { return kKv; }

template <class Family, class Problem>
const char* why_not(const Family& family, const Problem& problem, const PlanTarget& target, KernelPreference kernels) {
  if (family.serves && !family.serves(target.arch)) return family.serves_only;
  if (family.serves && kernels == KernelPreference::portable) return "CUFLASH_CUDA_KERNELS is portable";
  return family.why_not(problem, target);
}

template <class Problem>
auto plan_by_first(const Problem& problem, const PlanTarget& target, KernelPreference kernels) {
  for (const auto* family : families_for(problem))
    if (!why_not(*family, problem, target, kernels)) return family->plan(problem, target);
  throw FlashAttentionError(CUFLASH_INTERNAL, "no family of kernels accepts the problem");
}

template <class Families>
void add_kernels(std::vector<const KernelType*>& all, const Families& families) {
  for (const auto* family : families) all.insert(all.end(), family->kernels.begin(), family->kernels.end());
}

const std::vector<const KernelType*>& kernel_types() {
  static const std::vector<const KernelType*> instance = [] {
    std::vector<const KernelType*> all{&merge_states, &summarize_mask};
    add_kernels(all, kForward), add_kernels(all, kBackward), add_kernels(all, kKv);
    return all;
  }();
  return instance;
}

}  // namespace

ForwardPlan plan_forward(const ForwardProblem& p, const Arch& arch, KernelPreference kernels,
                         const tuned::Choice* choice, const ForwardRun& run) {
  require_supported(p);
  const PlanTarget target{.arch = arch,
                          .choice = choice,
                          .num_sms = run.num_sms != 0 ? run.num_sms : arch.usual_sms,
                          .reduction = run.reduction,
                          .has_workspace = run.has_workspace};
  return plan_by_first(p, target, kernels);
}

BackwardPlan plan_backward(const BackwardProblem& p, const Arch& arch, Reproducible reproducible,
                           KernelPreference kernels, const tuned::Choice* choice) {
  require_supported(p);
  return plan_by_first(p, {.arch = arch, .choice = choice, .reproducible = reproducible}, kernels);
}

KvPlan plan_kv(const CacheProblem& p, const Arch& arch, int num_sms, KernelPreference kernels,
               const tuned::Choice* choice, SplitReduction reduction, bool has_workspace) {
  require_supported(p);
  const PlanTarget target{.arch = arch,
                          .choice = p.num_splits == 0 ? choice : nullptr,
                          .num_sms = num_sms,
                          .reduction = reduction,
                          .has_workspace = has_workspace};
  return plan_by_first(p, target, kernels);
}

template <class Problem>
std::vector<Rejection> rejections(const Problem& p, const Arch& arch, KernelPreference kernels) {
  std::vector<Rejection> all;
  for (const auto* family : families_for(p)) {
    const char* reason = why_not(*family, p, {.arch = arch}, kernels);
    if (!reason) break;
    all.push_back({family->name, reason});
  }
  return all;
}
template std::vector<Rejection> rejections(const ForwardProblem&, const Arch&, KernelPreference);
template std::vector<Rejection> rejections(const BackwardProblem&, const Arch&, KernelPreference);
template std::vector<Rejection> rejections(const CacheProblem&, const Arch&, KernelPreference);

const KernelType& kernel_type(std::string_view name) {
  for (const KernelType* type : kernel_types())
    if (type->name == name) return *type;
  reject("kernel: '", name, "' is not the name of a kernel");
}

KernelKey kernel_named(std::string_view name) { return read_kernel_name(name, kernel_types()); }

}  // namespace cuflash::cuda
