#include "cli/support/question.h"

#include <string_view>

#include "backend/backend.h"
#include "cuda/families/registry.h"
#include "problem/describe.h"
#include "problem/describe_cache.h"

namespace cuflash::cli {

namespace {

// The text between two words; empty if the first does not occur.
std::string_view between(std::string_view text, std::string_view before, std::string_view behind) {
  const size_t found = text.find(before);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + before.size());
  return text.substr(0, text.find(behind));
}

Answer answer_of(const std::string& explanation) {
  if (explanation.find("backend    none") != std::string::npos)
    return {.reason = std::string(between(explanation, "not cuda   ", "\n"))};
  const std::string_view config = between(explanation, "config     tiles of ", "\n");
  if (config.empty()) return {.served = true};
  const std::string_view queries = config.substr(0, config.find(' ')), keys = between(config, " x ", " keys");
  return {.served = true,
          .tiles = join(queries, " x ", keys),
          .options = std::string(config.substr(config.rfind(", ") + 2)),
          .by_tma = config.find(" by TMA ") != std::string_view::npos,
          .not_sm90 = std::string(between(explanation, "not sm90   ", "\n"))};
}

template <class Tensors>
Answer ask(const Attention& attention, const Tensors& tensors, const Execution& execution, const std::string& place) {
  using detail::to_c;
  const auto c_attention = to_c(attention);
  const auto c_tensors = to_c(tensors);
  Snapshot copies;
  try {
    if (place == kSupportCpu) return answer_of(explain(describe(c_attention, c_tensors, Memory{}, copies), execution));
    return answer_of(explain(describe(c_attention, c_tensors, Memory{0}, copies), execution, cuda::arch_named(place)));
  } catch (const FlashAttentionError& error) {
    return {.reason = error.what()};
  }
}

}  // namespace

Question plain_question(DType type, int64_t dim, bool backward) {
  ExplainOptions options;
  options.heads = 4, options.seq_q = kSupportLength, options.dim = dim;
  options.dtype = type, options.backward = backward;
  return {options, {}};
}

Sketch sketch_of(const Question& question) {
  Sketch sketch(question.options);
  if (question.change) question.change(sketch);
  return sketch;
}

Answer ask(const Question& question, const std::string& place) {
  const Sketch sketch = sketch_of(question);
  const Execution& execution = question.options.execution;
  return question.options.backward ? ask(sketch.attention, sketch.tensors, execution, place)
                                   : ask(sketch.attention, sketch.outputs, execution, place);
}

Answer ask(const Attention& attention, const CacheTensors& cache, const std::string& place) {
  return ask(attention, cache, Execution{}, place);
}

std::string ask_hopper(const Question& question) {
  const Sketch sketch = sketch_of(question);
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  const auto answer = [&](const auto& problem, const auto& plan) {
    const auto rejected = cuda::rejections(problem, arch, cuda::KernelPreference::best);
    return plan.family->serves ? join(plan.tile_q, " x ", plan.tile_k) : join("no: ", rejected.back().reason);
  };
  const auto attention = detail::to_c(sketch.attention);
  Snapshot copies;
  try {
    if (question.options.backward) {
      const BackwardProblem p = describe(attention, detail::to_c(sketch.tensors), Memory{0}, copies);
      return answer(p, plan_backward(p, arch, cuda::Reproducible::no, cuda::KernelPreference::best));
    }
    const ForwardProblem p = describe(attention, detail::to_c(sketch.outputs), Memory{0}, copies);
    return answer(p, plan_forward(p, arch, cuda::KernelPreference::best));
  } catch (const FlashAttentionError&) {
    return "no kernel at all: see limits";
  }
}

}  // namespace cuflash::cli
