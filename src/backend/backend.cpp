#include "backend/backend.h"

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/kernels.h"
#include "cpu/plan.h"
#include "cpu/threads.h"
#include "cpu/types.h"
#include "error.h"

namespace cuflash {
namespace {

constexpr const char* kNoCuda = "this build of cuflash has no CUDA backend; use device auto or cpu with host memory";

// The only check that a hot call needs: no string is built on this path.
void require_cpu(const Execution& execution) {
  if (execution.device == Device::cuda)
    throw FlashAttentionError(CUFLASH_NO_DEVICE, join("device: cuda was asked for, but ", kNoCuda));
}

template <class P>
std::string explain_cpu(const P& p, const Execution& e, const char* pass, const std::string& kernel, size_t workspace) {
  std::string text = join("problem    ", pass, " ", to_string(p), "\n");
  text += join("backend    cpu: ", choose(e).reason, "\n");
  text += join("kernel     ", cpu::isa_name(), ", ", cpu::arithmetic_of(p), ": ", kernel, "\n");
  text += join("threads    up to ", cpu::num_threads(e),
               e.parallel_for ? " of the caller's parallel_for" : " of the library's pool", "\n");
  text += join("workspace  ", workspace, " bytes\n");
  text += join("not cuda   ", kNoCuda);
  return text;
}

// explain answers for a device that cannot serve, too.
template <class P>
std::string explain_any(const P& p, const Execution& e, const char* pass, const std::string& kernel) {
  if (e.device == Device::cuda)
    return join("problem    ", pass, " ", to_string(p), "\nbackend    none\nnot cuda   ", kNoCuda);
  return explain_cpu(p, e, pass, kernel, workspace_size(p, e));
}

}  // namespace

Choice choose(const Execution& execution) {
  require_cpu(execution);
  return {Device::cpu, execution.device == Device::cpu ? "asked for" : "the only backend of this build"};
}

void run(const ForwardProblem& p, const Execution& e) { require_cpu(e), cpu::forward(p, e); }
void run(const BackwardProblem& p, const Execution& e) { require_cpu(e), cpu::backward(p, e); }

size_t workspace_size(const ForwardProblem& p, const Execution& e) {
  return require_cpu(e), cpu::forward_workspace_size(p, e);
}
size_t workspace_size(const BackwardProblem& p, const Execution& e) {
  return require_cpu(e), cpu::backward_workspace_size(p, e);
}

std::string explain(const ForwardProblem& p, const Execution& e) {
  return explain_any(p, e, "forward", cpu::describe_forward(p));
}
std::string explain(const BackwardProblem& p, const Execution& e) {
  return explain_any(p, e, "backward", "P recomputed from LSE, one pass over tiles of keys");
}

}  // namespace cuflash
