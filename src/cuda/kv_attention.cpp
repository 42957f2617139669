// Attention over a KV cache, and the merging of two results: plan -> params -> one launch.
#include "cuda/backend.h"
#include "cuda/driver/device.h"
#include "cuda/families/params_kv.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/tile_counts.h"
#include "cuda/launch/workspace.h"
#include "cuda/plan_device.h"

namespace cuflash::cuda {

namespace {

void attend_cache(const CacheProblem& p, const Execution& e, const KvPlan& plan, const DeviceState& state) {
  const DeviceGuard guard(state);
  const Workspace workspace(e, TileCounts::bytes(e) + plan.workspace.size);
  TileCounts counts(e, workspace.data());
  void* const behind = workspace.data() ? static_cast<std::byte*>(workspace.data()) + TileCounts::bytes(e) : nullptr;
  if (plan.no_tma) {
    const KvParams params = kv_params(p, plan, behind, counts.data());
    launch(guard, {&plan.launch}, &params, sizeof params, e.stream);
  } else {
    const Sm90KvParams params = sm90_kv_params(p, plan, behind, counts.data());
    launch(guard, {&plan.launch}, &params, sizeof params, e.stream);
  }
  counts.report(plan.config.tile_q, plan.config.tile_k);
}

}  // namespace

void attend_cache(const CacheProblem& p, const Execution& e) {
  const DeviceState& state = device(p.place.cuda_device);
  try {
    attend_cache(p, e, plan_of(p, state), state);
  } catch (const NoRoomForAll&) {
    attend_cache(p, e, plan_of(p, state, SplitReduction::by_tickets), state);
  }
}

size_t cache_workspace_size(const CacheProblem& p, const Execution& e) {
  const DeviceState& state = device(p.place.cuda_device);
  return TileCounts::bytes(e) + plan_of(p, state).workspace.size;
}

void merge(const MergeProblem& p, const Execution& e) {
  const DeviceState& state = device(p.place.cuda_device);
  const MergePlan plan = plan_merge(p, state.arch);
  const DeviceGuard guard(state);
  const MergeParams params = merge_params(p);
  launch(guard, {&plan.launch}, &params, sizeof params, e.stream);
}

}  // namespace cuflash::cuda
