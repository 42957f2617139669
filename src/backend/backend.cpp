#include "backend/backend.h"

#include <algorithm>
#include <cstring>

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/isa/kernels.h"
#include "cpu/kv/kv_attention.h"
#include "cpu/kv/merge.h"
#include "cpu/plan/heads_as_rows.h"
#include "cpu/plan/plan.h"
#include "cpu/plan/tuned_tile.h"
#include "cpu/threads/threads.h"
#include "cpu/tile/summarize_mask.h"
#include "cuda/backend.h"
#include "cuda/explain.h"
#include "error.h"

namespace cuflash {
namespace {

const char* pass_of(const ForwardProblem&) { return "forward"; }
const char* pass_of(const BackwardProblem&) { return "backward"; }
const char* pass_of(const CacheProblem&) { return "attend_cache"; }
std::string cpu_kernel(const ForwardProblem& p) {
  return cpu::describe_forward(p) + (cpu::has_heads_as_rows(p) ? ", with the queries of all heads of a group" : "");
}
std::string cpu_kernel(const CacheProblem& p) { return cpu::describe_cache(p); }
std::string cpu_kernel(const BackwardProblem&) { return "P recomputed from LSE, one pass over tiles of keys"; }

template <class P>
std::string tiles_line(tuned::Direction direction, const P& p, const Execution& e) {
  const cpu::TileShape tile = cpu::tile_for(p, cpu::num_threads(e));
  return join("tiles      ", tile.q, " queries x ", tile.k, " keys",
              cpu::tuned_choice(direction, p) ? ", tuned on this machine by cuflash tune\n" : "\n");
}
std::string cpu_tiles(const ForwardProblem& p, const Execution& e) {
  if (cpu::takes_decode(p)) return "";
  return tiles_line(tuned::Direction::forward, cpu::has_heads_as_rows(p) ? cpu::heads_as_rows(p) : p, e);
}
std::string cpu_tiles(const BackwardProblem& p, const Execution& e) {
  return tiles_line(tuned::Direction::backward, p, e);
}
std::string cpu_tiles(const CacheProblem&, const Execution&) { return ""; }

template <class P>
std::string problem_line(const P& p) {
  return join("problem    ", pass_of(p), " ", to_string(p), "\n");
}

// The line of explain about kernels that the processor supports but the system does not allow.
std::string refused_kernels(const Problem& p) {
  const std::string refusal = cpu::refusal_of_matrix_kernels(p.dtype);
  if (refusal.empty()) return "";
  std::string label = join("not ", cpu::isa_name(), " ");
  label.resize(std::max(label.size(), std::strlen("not cuda   ")), ' ');
  return join(label, refusal, "\n");
}

template <class P>
std::string explain_cpu(const P& p, const Execution& e) {
  const bool requested = e.device == Device::cpu;
  std::string text = problem_line(p);
  text += join("backend    cpu: ", requested ? "requested" : "the tensors are in host memory", "\n");
  text += join("kernel     ", cpu::isa_of(p), ", ", cpu::arithmetic_of(p), ": ", cpu_kernel(p), "\n");
  text += cpu_tiles(p, e);
  text += join("threads    up to ", cpu::num_threads(e),
               e.parallel_for ? " of the caller's parallel_for" : " of the library's pool", "\n");
  text += join("workspace  ", workspace_size(p, e), " bytes\n");
  text += refused_kernels(p);
  text += "not cuda   it serves tensors in the memory of a CUDA device";
  return text;
}

template <class P, class... Arch>
std::string explain_cuda(const P& p, const Execution& e, const Arch&... arch) {
  return problem_line(p) + cuda::explain(p, e, arch...) + "\nnot cpu    it serves tensors in host memory";
}

template <class P>
std::string explain_any(const P& p, const Execution& e) {
  return p.memory.on_cuda() ? explain_cuda(p, e) : explain_cpu(p, e);
}

template <class P>
std::string no_backend(const P& p, const char* why) {
  return join(problem_line(p), "backend    none\nnot cuda   ", why);
}

}  // namespace

Compute<ForwardProblem> backend_for(const ForwardProblem& p) {
  return p.memory.on_cuda() ? cuda::forward : cpu::forward;
}
Compute<BackwardProblem> backend_for(const BackwardProblem& p) {
  return p.memory.on_cuda() ? cuda::backward : cpu::backward;
}
Compute<CacheProblem> backend_for(const CacheProblem& p) {
  return p.memory.on_cuda() ? cuda::attend_cache : cpu::attend_cache;
}
Compute<MergeProblem> backend_for(const MergeProblem& p) { return p.memory.on_cuda() ? cuda::merge : cpu::merge; }
Compute<MaskProblem> backend_for(const MaskProblem& p) {
  return p.memory.on_cuda() ? cuda::summarize : cpu::summarize_mask;
}

size_t workspace_size(const ForwardProblem& p, const Execution& e) {
  return p.memory.on_cuda() ? cuda::forward_workspace_size(p, e) : cpu::forward_workspace_size(p, e);
}
size_t workspace_size(const BackwardProblem& p, const Execution& e) {
  return p.memory.on_cuda() ? cuda::backward_workspace_size(p, e) : cpu::backward_workspace_size(p, e);
}
size_t workspace_size(const CacheProblem& p, const Execution& e) {
  return p.memory.on_cuda() ? cuda::cache_workspace_size(p, e) : cpu::cache_workspace_size(p, e);
}

std::string explain(const ForwardProblem& p, const Execution& e) { return explain_any(p, e); }
std::string explain(const BackwardProblem& p, const Execution& e) { return explain_any(p, e); }
std::string explain(const CacheProblem& p, const Execution& e) { return explain_any(p, e); }

std::string explain(const ForwardProblem& p, const Execution& e, const cuda::Arch& arch) {
  return explain_cuda(p, e, arch);
}
std::string explain(const BackwardProblem& p, const Execution& e, const cuda::Arch& arch) {
  return explain_cuda(p, e, arch);
}
std::string explain(const CacheProblem& p, const Execution& e, const cuda::Arch& arch) {
  return explain_cuda(p, e, arch);
}

std::string explain_none(const ForwardProblem& p, const char* why) { return no_backend(p, why); }
std::string explain_none(const BackwardProblem& p, const char* why) { return no_backend(p, why); }
std::string explain_none(const CacheProblem& p, const char* why) { return no_backend(p, why); }

}  // namespace cuflash
