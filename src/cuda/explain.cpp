#include "cuda/explain.h"

#include <utility>

#include "cuda/backend.h"
#include "cuda/driver/device.h"
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

std::string options_text(int options) {
  if (options == kAllOptions) return "every option";
  std::string text;
  for (const auto& [bit, name] : {std::pair{kSoftcap, "softcap"},
                                  {kAlibi, "alibi"},
                                  {kBias, "bias"},
                                  {kMaskTensor, "mask"},
                                  {kDropout, "dropout"},
                                  {kScaleFirst, "scale"}})
    if (options & bit) text += join(text.empty() ? "" : " ", name);
  return text.empty() ? "no option" : text;
}

template <class Config>
std::string config_line(const Config& c) {
  return join("config     tiles of ", c.tile_q, " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk, " and ",
              c.dim_v, ", ", c.stages, " stages, ", c.ctas_per_sm, " CTAs an SM, rows copied ",
              c.copy == kCopyElements ? "an element" : "16 bytes", " at a time, ", options_text(c.options), "\n");
}

std::string config_line(const Sm90ForwardConfig& c) {
  return join("config     tiles of ", tile_q_of(c), " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.stages, " stages, ", c.warpgroups,
              " warpgroups that compute and one that copies, ", options_text(c.options), "\n");
}

std::string config_line(const Sm90BackwardConfig& c) {
  return join("config     tiles of ", c.tile_q, " queries x ", tile_k_of(c), " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.stages, " stages, ", c.warpgroups,
              " warpgroups that have keys and one that copies", c.dq ? " and computes dQ\n" : "\n");
}

std::string config_line(const Sm90DqConfig& c) {
  return join("config     dQ: tiles of ", tile_q_of(c), " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.key_stages, " tiles of keys and ", c.value_stages, " of values, ", c.warpgroups,
              " warpgroups that compute and one that copies\n");
}

std::string config_line(const KvConfig& c) {
  return join("config     tiles of ", c.tile_q, " rows (queries times heads of a group) x ", c.tile_k,
              " keys, head sizes up to ", c.dim_qk, " and ", c.dim_v,
              c.v_in_k ? ", values are columns of keys, " : ", ", c.stages, " stages, ", c.ctas_per_sm,
              " CTAs an SM, rows copied ",
              c.copy == kCopyTma        ? "as boxes by one more warp, "
              : c.copy == kCopyElements ? "in pieces of any alignment, "
                                        : "16 bytes at a time, ",
              c.fast_decode ? "plain, " : "", c.l2_exchange ? "splits wait for each other, " : "",
              options_text(c.options), "\n");
}

template <class Plan>
std::string reason_lines(const Plan& plan) {
  return join("reason     ", plan.reason, "\n", plan.not_sm90 ? join("not hopper ", plan.not_sm90, "\n") : "");
}
std::string main_config_line(const auto& plan) {
  return std::visit([](const auto& config) { return config_line(config); }, plan.config);
}
std::string config_lines(const ForwardPlan& plan) { return reason_lines(plan) + main_config_line(plan); }
std::string config_lines(const BackwardPlan& plan) {
  const bool dq = plan.dq.grid_x != 0, main = !dq || plan.main.grid_x != 0;
  return join(reason_lines(plan), main ? main_config_line(plan) : "", dq ? config_line(plan.dq_config) : "");
}

// Where a plan is for: a device, or an architecture, of which nothing was measured.
struct Somewhere {
  const Arch& arch;
  int num_sms;
  const DeviceState* device = nullptr;
};

std::string plan_lines(const ForwardProblem& p, const Execution& e, const Somewhere& at) {
  const ForwardPlan plan = at.device ? plan_of(p, *at.device) : plan_forward(p, at.arch);
  return join(config_lines(plan), launch_lines(plan.launch), "workspace  ", TileCounts::bytes(e), " bytes");
}

std::string plan_lines(const BackwardProblem& p, const Execution& e, const Somewhere& at) {
  const BackwardPlan plan =
      at.device ? plan_of(p, *at.device, reproducible(e)) : plan_backward(p, at.arch, reproducible(e));
  std::string text = config_lines(plan);
  for (const Launch* launch : plan.launches()) text += launch_lines(*launch);
  return text + join("workspace  ", plan.workspace.size, " bytes");
}

std::string plan_lines(const CacheProblem& p, const Execution& e, const Somewhere& at) {
  const KvPlan plan = at.device ? plan_of(p, *at.device) : plan_kv(p, at.arch, at.num_sms);
  const bool told = plan.no_tma && at.arch.number() == 90;
  return join("reason     ", plan.reason, "\n", told ? join("not boxes  ", plan.no_tma, "\n") : "",
              config_line(plan.config), "splits     ", plan.splits, " for ", at.num_sms, " SMs; ", plan.eager_splits,
              " of them where each has ", plan.least_tiles, " tiles of keys, more where it has ", kLongTiles,
              plan.short_splits != 0 ? join("; ", plan.short_splits, " are short, and last") : "", "\n",
              launch_lines(plan.launch), "workspace  ", TileCounts::bytes(e) + plan.workspace.size, " bytes");
}

// What the kernels do not compute is an answer, too.
template <class P>
std::string explain_backend(const P& p, const Execution& e, const Somewhere& at, const std::string& where) {
  try {
    return join("backend    cuda: ", where, "\n", plan_lines(p, e, at));
  } catch (const FlashAttentionError& error) {
    if (error.status() != CUFLASH_UNSUPPORTED) throw;
    return join("backend    none\nnot cuda   ", error.what());
  }
}

template <class P>
std::string explain_here(const P& p, const Execution& e) {
  const DeviceState& state = device(p.place.cuda_device);
  return explain_backend(
      p, e, {state.arch, state.num_sms, &state},
      join("the tensors are in the memory of device ", state.ordinal, ", ", state.name, ", ", target_of(state.arch)));
}

template <class P>
std::string explain_arch(const P& p, const Execution& e, const Arch& arch) {
  return explain_backend(p, e, {arch, usual_sms(arch)}, join("as asked for, ", target_of(arch)));
}

}  // namespace

std::string explain(const ForwardProblem& p, const Execution& e) { return explain_here(p, e); }
std::string explain(const BackwardProblem& p, const Execution& e) { return explain_here(p, e); }
std::string explain(const CacheProblem& p, const Execution& e) { return explain_here(p, e); }
std::string explain(const ForwardProblem& p, const Execution& e, const Arch& arch) { return explain_arch(p, e, arch); }
std::string explain(const BackwardProblem& p, const Execution& e, const Arch& arch) { return explain_arch(p, e, arch); }
std::string explain(const CacheProblem& p, const Execution& e, const Arch& arch) { return explain_arch(p, e, arch); }

}  // namespace cuflash::cuda
