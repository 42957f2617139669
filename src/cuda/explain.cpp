#include "cuda/explain.h"

#include <algorithm>
#include <cstring>

#include "cuda/backend.h"
#include "cuda/driver/device.h"
#include "cuda/families/summarize_mask.h"
#include "cuda/jit/program.h"
#include "cuda/launch/tile_counts.h"
#include "cuda/plan_device.h"
#include "error.h"
#include "kv/geometry.h"

namespace cuflash::cuda {
namespace {

std::string launch_lines(const Launch& launch) {
  if (launch.grid_x == 0) return "";
  return join("kernel     ", name_of(launch.kernel), "\n", "grid       ", launch.ctas(),
              launch.persistent ? " tiles for " : " ", "CTAs of ", launch.threads, " threads, ", launch.shared_bytes,
              " bytes of shared memory\n");
}

template <class Problem, class Plan>
std::string config_lines(const Problem& p, const Plan& plan, const Arch& arch) {
  std::string text = join("reason     ", plan.reason, "\n");
  for (const Rejection& rejection : rejections(p, arch)) {
    std::string label = join("not ", rejection.family, " ");
    label.resize(std::max(label.size(), std::strlen("reason     ")), ' ');
    text += join(label, rejection.reason, "\n");
  }
  return text + plan.family->describe(plan);
}

// Describes the summary that the call makes of a mask tensor.
template <class Problem, class Plan>
std::string mask_lines(const Problem& p, const Plan& plan, const Arch& arch) {
  const size_t bytes = own_summary_bytes(p, plan);
  if (bytes == 0) return "";
  return join("mask       summarized first, in ", bytes, " bytes of the workspace\n",
              launch_lines(plan_mask_summary(p.mask, mask_shape_of(p), arch)));
}

// The target of a plan: a device, or an architecture without tuned choices.
struct ExplainTarget {
  const Arch& arch;
  int num_sms;
  const DeviceState* device = nullptr;
};

// Keys that the forward kernels split.
std::string split_line(int64_t splits, const ExplainTarget& at) {
  return join("splits     ", splits, " of the keys, for ", at.num_sms, " SMs\n");
}

std::string plan_lines(const ForwardProblem& p, const Execution& e, const ExplainTarget& at) {
  const ForwardPlan plan = at.device ? plan_of(p, *at.device) : plan_forward(p, at.arch);
  std::string text = config_lines(p, plan, at.arch) + mask_lines(p, plan, at.arch);
  if (plan.splits > 1) text += split_line(plan.splits, at);
  for (const Launch* launch : plan.launches()) text += launch_lines(*launch);
  return text + join("workspace  ", bytes_with_summary(p, plan, TileCounts::bytes(e) + plan.workspace.size), " bytes");
}

std::string plan_lines(const BackwardProblem& p, const Execution& e, const ExplainTarget& at) {
  const BackwardPlan plan =
      at.device ? plan_of(p, *at.device, reproducible(e)) : plan_backward(p, at.arch, reproducible(e));
  std::string text = config_lines(p, plan, at.arch) + mask_lines(p, plan, at.arch);
  for (const Launch* launch : plan.launches()) text += launch_lines(*launch);
  return text + join("workspace  ", bytes_with_summary(p, plan, plan.workspace.size), " bytes");
}

std::string plan_lines(const CacheProblem& p, const Execution& e, const ExplainTarget& at) {
  const KvPlan plan = at.device ? plan_of(p, *at.device) : plan_kv(p, at.arch, at.num_sms);
  std::string text = config_lines(p, plan, at.arch);
  if (!plan.forward)
    text += join("splits     ", plan.splits, " for ", at.num_sms, " SMs; ", plan.base_splits,
                 " of them where each has ", plan.min_tiles_per_split, " tiles of keys, more where it has ", kLongTiles,
                 plan.short_splits != 0 ? join("; ", plan.short_splits, " are short, and last") : "", "\n");
  else if (plan.splits > 1) text += split_line(plan.splits, at);
  for (const Launch* launch : plan.launches()) text += launch_lines(*launch);
  return join(text, "workspace  ", TileCounts::bytes(e) + plan.workspace.size, " bytes");
}

// If no kernel computes the problem, explain says so instead of throwing.
template <class P>
std::string explain_backend(const P& p, const Execution& e, const ExplainTarget& at, const std::string& where) {
  try {
    return join("backend    cuda: ", where, "\n", plan_lines(p, e, at));
  } catch (const FlashAttentionError& error) {
    if (error.status() != CUFLASH_UNSUPPORTED) throw;
    return join("backend    none\nnot cuda   ", error.what());
  }
}

template <class P>
std::string explain_here(const P& p, const Execution& e) {
  const DeviceState& state = device(p.memory.cuda_device);
  return explain_backend(
      p, e, {state.arch, state.num_sms, &state},
      join("the tensors are in the memory of device ", state.ordinal, ", ", state.name, ", ", target_of(state.arch)));
}

template <class P>
std::string explain_arch(const P& p, const Execution& e, const Arch& arch) {
  return explain_backend(p, e, {arch, arch.usual_sms}, join("as requested, ", target_of(arch)));
}

}  // namespace

std::string explain(const ForwardProblem& p, const Execution& e) { return explain_here(p, e); }
std::string explain(const BackwardProblem& p, const Execution& e) { return explain_here(p, e); }
std::string explain(const CacheProblem& p, const Execution& e) { return explain_here(p, e); }
std::string explain(const ForwardProblem& p, const Execution& e, const Arch& arch) { return explain_arch(p, e, arch); }
std::string explain(const BackwardProblem& p, const Execution& e, const Arch& arch) { return explain_arch(p, e, arch); }
std::string explain(const CacheProblem& p, const Execution& e, const Arch& arch) { return explain_arch(p, e, arch); }

}  // namespace cuflash::cuda
