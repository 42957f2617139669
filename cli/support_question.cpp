#include "cli/support_question.h"

#include <string_view>

#include "backend/backend.h"
#include "cuda/plan.h"
#include "problem/describe.h"

namespace cuflash::cli {

namespace {

// What stands between two words; nothing where the first is not there.
std::string_view between(std::string_view text, std::string_view before, std::string_view behind) {
  const size_t found = text.find(before);
  if (found == std::string_view::npos) return {};
  text.remove_prefix(found + before.size());
  return text.substr(0, text.find(behind));
}

Answer answer_of(const std::string& explanation) {
  if (explanation.find("backend    none") != std::string::npos)
    return {false, "", "", std::string(between(explanation, "not cuda   ", "\n"))};
  const std::string_view config = between(explanation, "config     tiles of ", "\n");
  if (config.empty()) return {true, "", "", ""};
  const std::string_view queries = config.substr(0, config.find(' ')), keys = between(config, " queries x ", " keys");
  return {true, join(queries, " x ", keys), std::string(config.substr(config.rfind(", ") + 2)), ""};
}

template <class Tensors>
Answer ask(const Sketch& sketch, const Tensors& tensors, const Question& question, const std::string& place) {
  const auto attention = detail::to_c(sketch.attention);
  const auto c_tensors = detail::to_c(tensors);
  const Execution& execution = question.options.execution;
  try {
    if (place == kSupportCpu) return answer_of(explain(describe(attention, c_tensors, Place{}), execution));
    return answer_of(explain(describe(attention, c_tensors, Place{0}), execution, cuda::arch_named(place)));
  } catch (const FlashAttentionError& error) {
    return {false, "", "", error.what()};
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
  return question.options.backward ? ask(sketch, sketch.tensors, question, place)
                                   : ask(sketch, sketch.outputs, question, place);
}

std::string ask_hopper(const Question& question) {
  const Sketch sketch = sketch_of(question);
  const auto answer = [](const auto& plan) {
    return plan.not_hopper ? join("no: ", plan.not_hopper) : join(plan.tile_q, " x ", plan.tile_k);
  };
  const cuda::Arch arch = cuda::arch_named("sm_90a");
  const auto attention = detail::to_c(sketch.attention);
  try {
    if (question.options.backward)
      return answer(plan_backward(describe(attention, detail::to_c(sketch.tensors), Place{0}), arch,
                                  cuda::Reproducible::no, cuda::Kernels::best));
    return answer(plan_forward(describe(attention, detail::to_c(sketch.outputs), Place{0}), arch, cuda::Kernels::best));
  } catch (const FlashAttentionError&) {
    return "no kernel at all: see limits";
  }
}

}  // namespace cuflash::cli
