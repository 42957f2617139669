#include "cuda/backend.h"

#include <cstddef>

#include "cuda/driver/device.h"
#include "cuda/families/params_backward.h"
#include "cuda/families/params_forward.h"
#include "cuda/launch/launch.h"
#include "cuda/launch/tile_counts.h"
#include "cuda/launch/workspace.h"
#include "cuda/plan_device.h"

namespace cuflash::cuda {

void forward(const ForwardProblem& p, const Execution& e) {
  const DeviceState& state = device(p.place.cuda_device);
  const ForwardPlan plan = plan_of(p, state);
  const DeviceGuard guard(state);
  const Workspace workspace(e, TileCounts::bytes(e));
  TileCounts counts(e, workspace.data());
  if (std::holds_alternative<Sm90ForwardConfig>(plan.config)) {
    const Sm90ForwardParams params = sm90_forward_params(p, plan, grid_of(plan.launch, state.num_sms), counts.data());
    launch(guard, {&plan.launch}, &params, sizeof params, e.stream);
  } else {
    const ForwardParams params = forward_params(p, counts.data());
    launch(guard, {&plan.launch}, &params, sizeof params, e.stream);
  }
  counts.report(plan.tile_q, plan.tile_k);
}

void backward(const BackwardProblem& p, const Execution& e) {
  const DeviceState& state = device(p.place.cuda_device);
  const BackwardPlan plan = plan_of(p, state, reproducible(e));
  const DeviceGuard guard(state);
  const Workspace workspace(e, plan.workspace.size);
  TileCounts counts(e, workspace.data());
  if (std::holds_alternative<Sm90BackwardConfig>(plan.config)) {
    // The kernels for Hopper take all of it, by a pointer, the others the first part.
    const Sm90BackwardParams params =
        sm90_backward_params(p, plan, grid_of(plan.dq, state.num_sms), workspace.data(), counts.data());
    static_assert(offsetof(Sm90BackwardParams, backward) == 0);
    launch(guard, plan.launches(), &params, sizeof params.backward, e.stream);
  } else {
    const BackwardParams params = backward_params(p, plan, workspace.data(), counts.data());
    launch(guard, plan.launches(), &params, sizeof params, e.stream);
  }
  counts.report(plan.tile_q, plan.tile_k);
}

size_t forward_workspace_size(const ForwardProblem& p, const Execution& e) {
  plan_of(p, device(p.place.cuda_device));  // what is not supported is refused by the query already
  return TileCounts::bytes(e);
}

size_t backward_workspace_size(const BackwardProblem& p, const Execution& e) {
  return plan_of(p, device(p.place.cuda_device), reproducible(e)).workspace.size;
}

}  // namespace cuflash::cuda
