#include "cuda/backend.h"

#include <cstddef>

#include "cuda/driver/device.h"
#include "cuda/families/params_kv.h"
#include "cuda/families/summarize_mask.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/tile_counts.h"
#include "cuda/launch/workspace.h"
#include "cuda/plan_device.h"

namespace cuflash::cuda {
namespace {

void summarize(const DeviceGuard& guard, const ConstRows& mask, const MaskShape& shape, const MaskSummary& summary,
               void* stream, const NeededKeys& needed = {}) {
  const Launch kernel = plan_mask_summary(mask, shape, guard.state().arch);
  const Launch* const launches[] = {&kernel};
  KernelParams params;
  params.set([&] { return mask_summary_params(mask, shape, summary, needed); });
  launch(guard, launches, params, stream);
}

// Bytes of the tile counters before a plan's part of the workspace. Backward plans have room for them in their own part.
template <class Plan>
size_t counter_bytes(const Plan&, const Execution& e) {
  return TileCounts::bytes(e);
}
size_t counter_bytes(const BackwardPlan&, const Execution&) { return 0; }

template <class Problem, class Plan>
void enqueue(const Problem& p, const Execution& e, const Plan& plan, const DeviceState& state) {
  const DeviceGuard guard(state);
  const size_t counters = counter_bytes(plan, e), summary_bytes = own_summary_bytes(p, plan);
  const size_t all_bytes = bytes_with_summary(p, plan, counters + plan.workspace.size);
  const Workspace workspace(e, all_bytes);
  TileCounts counts(e, workspace.data());
  const auto part = [&](size_t first) { return static_cast<std::byte*>(workspace.data()) + first; };
  void* const scratch = workspace.data() ? part(counters) : nullptr;
  KernelParams params;
  if (summary_bytes != 0) {
    Problem summarized = p;
    summarized.summary = mask_summary_at(mask_shape_of(p), part(all_bytes - summary_bytes));
    // Statistics classify a tile by its mask and by positions separately.
    summarize(guard, p.mask, mask_shape_of(p), summarized.summary, e.stream,
              counts.data() ? NeededKeys{} : needed_keys(p));
    plan.family->params(summarized, plan, {state.num_sms, scratch, counts.data()}, params);
  } else {
    plan.family->params(p, plan, {state.num_sms, scratch, counts.data()}, params);
  }
  launch(guard, plan.launches(), params, e.stream);
  counts.report(plan.tile_q, plan.tile_k);
}

// Forward needs a workspace only to be faster, apart from masks and statistics; without a large enough one it uses
// another plan.
bool has_room(const Execution& e, size_t bytes) {
  return e.workspace ? e.workspace_size >= bytes : e.allocate || e.workspace_from_pool;
}

}  // namespace

void forward(const ForwardProblem& p, const Execution& e) {
  const DeviceState& state = device(p.memory.cuda_device);
  const ForwardPlan plan = plan_of(p, state);
  if (plan.workspace.size != 0 && !has_room(e, TileCounts::bytes(e) + plan.workspace.size))
    return enqueue(p, e, plan_of(p, state, false), state);
  try {
    enqueue(p, e, plan, state);
  } catch (const CooperativeLaunchTooLarge&) {
    enqueue(p, e, plan_of(p, state, true, SplitReduction::ticket), state);
  }
}

void backward(const BackwardProblem& p, const Execution& e) {
  const DeviceState& state = device(p.memory.cuda_device);
  const BackwardPlan plan = plan_of(p, state, reproducible(e));
  enqueue(p, e, plan, state);
}

void attend_cache(const CacheProblem& p, const Execution& e) {
  const DeviceState& state = device(p.memory.cuda_device);
  const KvPlan plan = plan_of(p, state);
  if (plan.forward && !has_room(e, TileCounts::bytes(e) + plan.workspace.size))
    return enqueue(p, e, plan_of(p, state, SplitReduction::exchange, false), state);
  try {
    enqueue(p, e, plan, state);
  } catch (const CooperativeLaunchTooLarge&) {
    enqueue(p, e, plan_of(p, state, SplitReduction::ticket), state);
  }
}

void merge(const MergeProblem& p, const Execution& e) {
  const DeviceState& state = device(p.memory.cuda_device);
  const MergePlan plan = plan_merge(p, state.arch);
  const DeviceGuard guard(state);
  KernelParams params;
  params.set([&] { return merge_params(p); });
  const Launch* const launches[] = {&plan.launch};
  launch(guard, launches, params, e.stream);
}

void summarize(const MaskProblem& p, const Execution& e) {
  const DeviceState& state = device(p.memory.cuda_device);
  const DeviceGuard guard(state);
  summarize(guard, p.mask, p.shape, p.summary, e.stream);
}

size_t forward_workspace_size(const ForwardProblem& p, const Execution& e) {
  const ForwardPlan plan = plan_of(p, device(p.memory.cuda_device));
  return bytes_with_summary(p, plan, TileCounts::bytes(e) + plan.workspace.size);
}

size_t backward_workspace_size(const BackwardProblem& p, const Execution& e) {
  const BackwardPlan plan = plan_of(p, device(p.memory.cuda_device), reproducible(e));
  return bytes_with_summary(p, plan, plan.workspace.size);
}

size_t cache_workspace_size(const CacheProblem& p, const Execution& e) {
  return TileCounts::bytes(e) + plan_of(p, device(p.memory.cuda_device)).workspace.size;
}

}  // namespace cuflash::cuda
