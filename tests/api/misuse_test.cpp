// Hundreds of wrong calls of the C functions that compute, each broken in one way. Each must return a status and a sentence
// that begins with the argument, and write no output. misuse_pool_test.cpp does the same for page pools.
#include "tests/api/misuse.h"

#include <cuflash/cuflash_cache.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cuflash::rejections {
namespace {

using Result = std::optional<Refusal>;

constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();

const std::vector<std::string> kTensors = {"q",
                                           "k",
                                           "v",
                                           "alibi_slopes",
                                           "bias",
                                           "mask",
                                           "sink",
                                           "cu_seqlens_q",
                                           "cu_seqlens_k",
                                           "o",
                                           "lse",
                                           "dout",
                                           "dlse",
                                           "dq",
                                           "dk",
                                           "dv",
                                           "dbias",
                                           "dsink",
                                           "k_new",
                                           "v_new",
                                           "leftpad",
                                           "seqlens_q",
                                           "seqlens",
                                           "block_table",
                                           "seqlens_k",
                                           "batch_idx",
                                           "rotary_cos",
                                           "o_a",
                                           "o_b",
                                           "lse_a",
                                           "lse_b",
                                           "seqlens_new",
                                           "cu_seqlens_new",
                                           "rotary_sin"};

TEST_F(MisuseTest, Tensors) {
  for (const std::string& name : kTensors)
    for (const Defect& defect : tensor_defects())
      misuse.everywhere(name + " " + defect.what, [&](Target& target) -> Result {
        const Slot* slot = target.find(name);
        if (!slot) return std::nullopt;
        const Defect::Values values = defect.apply(*slot);
        return values ? Result(Refusal{name, *values}) : std::nullopt;
      });
  EXPECT_GE(misuse.count(), 400u);
}

// If two outputs share memory, the sentence begins with the one that comes first here.
std::string subject_of(const std::string& output, const Slot& other) {
  for (const char* name : {"o", "lse", "dq", "dk", "dv", "dbias", "dsink", "v", "k"})
    if (output == name || (other.is_output && other.name == name)) return name;
  return output;
}

// Each pair of an output and another tensor shares one block of memory; `at` says where in it the output begins.
void alias_all(Misuse& misuse, const std::string& what, size_t (*at)(const Slot& other, const Slot& output)) {
  for (const std::string& output : kTensors)
    for (const std::string& other : kTensors)
      misuse.calls(output + what + other, [&](Target& target) -> Result {
        const Slot *out = target.find(output), *in = target.find(other);
        if (output == other || !out || !in || !out->is_output) return std::nullopt;
        const size_t offset = at(*in, *out);
        // A merge may be done in place.
        if (target.name.find("merge") == 0 && other.rfind(output + "_", 0) == 0 && offset == 0) return std::nullopt;
        out->set_data(target.move(*in, std::max(bytes_of(*in), offset + bytes_of(*out))) + offset);
        return Refusal{subject_of(output, *in), {output, other, "memory of its own"}};
      });
}

TEST_F(MisuseTest, OutputsThatAreOtherTensors) {
  alias_all(misuse, " is ", [](const Slot&, const Slot&) { return size_t{0}; });
  EXPECT_GE(misuse.count(), 100u);
}

TEST_F(MisuseTest, OutputsThatBeginInTheLastElementOfOtherTensors) {
  alias_all(misuse, " begins in ", [](const Slot& other, const Slot& output) {
    const auto size = static_cast<size_t>(size_of(output.type()));
    return (bytes_of(other) - 1) / size * size;
  });
  EXPECT_GE(misuse.count(), 100u);
}

TEST_F(MisuseTest, WorkspacesThatAreTensors) {
  for (const std::string& name : kTensors) {
    const auto place = [&](Target& target, bool at_end) -> Result {
      const Slot* slot = target.find(name);
      size_t needed = 0;
      if (!slot || !target.execution) return std::nullopt;
      if (target.workspace_size(&needed) != CUFLASH_OK) return Refusal{"the query must answer"};
      const size_t bytes = bytes_of(*slot), offset = at_end ? (bytes - 1) / 64 * 64 : 0;
      std::byte* memory = target.move(*slot, std::max(bytes, offset + needed));
      target.execution->workspace = memory + offset, target.execution->workspace_size = needed;
      return Refusal{"workspace", {name, "memory of its own"}};
    };
    misuse.calls("workspace is " + name, [&](Target& target) { return place(target, false); });
    misuse.calls("workspace is the end of " + name, [&](Target& target) { return place(target, true); });
  }
}

TEST_F(MisuseTest, Lengths) {
  for (const std::string& name : kTensors)
    for (const int32_t value : {kMin, -1, kMax})
      for (const int64_t n : {0, 1})
        misuse.everywhere(name + "[" + text(n) + "] is " + text(value), [&](Target& target) -> Result {
          const Slot* slot = target.find(name);
          if (!slot || slot->type() != DType::i32) return std::nullopt;
          static_cast<int32_t*>(const_cast<void*>(slot->data))[n] = value;
          return Refusal{name, {text(value)}};
        });
}

TEST_F(MisuseTest, Options) {
  const auto number = [&](const std::string& name, double cuflash_attention::*field, double value) {
    misuse.everywhere(name + " " + text(value), [&](Target& target) -> Result {
      if (!target.attention) return std::nullopt;
      (target.attention->*field) = value;
      return Refusal{name};
    });
  };
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const double value : {nan, inf, -inf, 1e39, -1e300}) number("scale", &cuflash_attention::scale, value);
  for (const double value : {nan, inf, -inf, -1.0, -0.001, 1e39}) number("softcap", &cuflash_attention::softcap, value);
  for (const double value : {nan, inf, -inf, -1.0, 1.0, 2.0}) number("dropout_p", &cuflash_attention::dropout_p, value);
  const auto integer = [&](const std::string& name, auto field, int64_t value) {
    misuse.everywhere(name + " " + text(value), [&](Target& target) -> Result {
      if (!target.attention) return std::nullopt;
      target.attention->*field = static_cast<std::decay_t<decltype(target.attention->*field)>>(value);
      return Refusal{name, {text(value)}};
    });
  };
  for (const int64_t value : {int64_t{-2}, kLowest}) {
    integer("window_left", &cuflash_attention::window_left, value);
    integer("window_right", &cuflash_attention::window_right, value);
  }
  for (const int64_t value : {int64_t{2}, int64_t{-1}, int64_t{kMax}, int64_t{kMin}})
    integer("alignment", &cuflash_attention::alignment, value);
  for (const int64_t value : {int64_t{-1}, kLowest, kHighest})
    integer("max_seqlen_q", &cuflash_attention::max_seqlen_q, value);
}

TEST_F(MisuseTest, Execution) {
  const auto broken = [&](const std::string& what, const std::string& argument, void (*apply)(Target&)) {
    misuse.everywhere(what, [&](Target& target) -> Result {
      if (!target.execution) return std::nullopt;
      apply(target);
      return Refusal{argument};
    });
  };
  broken("device 3", "device", [](Target& t) { t.execution->device = 3; });
  broken("device -1", "device", [](Target& t) { t.execution->device = -1; });
  broken("device 2^31 - 1", "device", [](Target& t) { t.execution->device = kMax; });
  broken("num_threads -1", "num_threads", [](Target& t) { t.execution->num_threads = -1; });
  broken("num_threads -2^31", "num_threads", [](Target& t) { t.execution->num_threads = kMin; });
  broken("workspace NULL with a size", "workspace", [](Target& t) { t.execution->workspace_size = 1; });
  broken("workspace NULL with the largest size", "workspace",
         [](Target& t) { t.execution->workspace_size = std::numeric_limits<size_t>::max(); });
  broken("workspace misaligned", "workspace",
         [](Target& t) { t.execution->workspace = t.scratch(4096) + 32, t.execution->workspace_size = 1024; });
  broken("execution too small", "execution", [](Target& t) { t.execution->struct_size = 8; });
  broken("execution too large", "execution", [](Target& t) { t.execution->struct_size = size_t{1} << 40; });
  broken("attention too small", "attention",
         [](Target& t) { t.attention->struct_size = offsetof(cuflash_attention, mask_summary) - 1; });
  broken("attention of size 0", "attention", [](Target& t) { t.attention->struct_size = 0; });
  broken("attention too large", "attention",
         [](Target& t) { t.attention->struct_size = std::numeric_limits<size_t>::max(); });
  for (const size_t missing : {size_t{1}, size_t{64}})
    misuse.calls("workspace smaller by " + text(missing), [&](Target& target) -> Result {
      size_t bytes = 0;
      if (!target.execution || target.workspace_size(&bytes) != CUFLASH_OK || bytes < missing) return std::nullopt;
      target.execution->workspace = target.scratch(bytes), target.execution->workspace_size = bytes - missing;
      return Refusal{"workspace", {text(bytes), text(bytes - missing)}};
    });
}

TEST_F(MisuseTest, PlacesForAnswers) {
  for (const MakeTarget& make : all_targets()) {
    const Target target = make();
    if (!target.workspace_size) continue;
    misuse.check(target.name + ": bytes is NULL",
                 why_not_refused(target.untouched(), {"bytes"}, "the query", target.workspace_size(nullptr)));
    size_t needed = 7;
    misuse.check(target.name + ": text is NULL",
                 why_not_refused(target.untouched(), {"text"}, "explain", target.explain(nullptr, 1, &needed)));
    EXPECT_EQ(needed, 7u);
  }
}

// The sentence names the struct that is NULL, in every function that takes structs.
TEST_F(MisuseTest, NullStructs) {
  cuflash_attention a;
  cuflash_forward_outputs f;
  cuflash_backward_tensors b;
  cuflash_cache_tensors c;
  cuflash_attention_init(&a), cuflash_forward_outputs_init(&f), cuflash_backward_tensors_init(&b);
  cuflash_cache_tensors_init(&c);
  size_t bytes = 5;
  const auto refuse = [&](const std::string& name, const char* argument, cuflash_status status) {
    misuse.check(name + ": " + argument + " is NULL", why_not_refused(bytes == 5, {argument, {"NULL"}}, "it", status));
  };
  refuse("forward", "attention", cuflash_forward(nullptr, &f, nullptr));
  refuse("forward", "forward_outputs", cuflash_forward(&a, nullptr, nullptr));
  refuse("backward", "attention", cuflash_backward(nullptr, &b, nullptr));
  refuse("backward", "backward_tensors", cuflash_backward(&a, nullptr, nullptr));
  refuse("attend_cache", "attention", cuflash_attend_cache(nullptr, &c, nullptr));
  refuse("attend_cache", "cache_tensors", cuflash_attend_cache(&a, nullptr, nullptr));
  refuse("forward query", "attention", cuflash_forward_workspace_size(nullptr, &f, nullptr, &bytes));
  refuse("forward query", "forward_outputs", cuflash_forward_workspace_size(&a, nullptr, nullptr, &bytes));
  refuse("backward query", "attention", cuflash_backward_workspace_size(nullptr, &b, nullptr, &bytes));
  refuse("backward query", "backward_tensors", cuflash_backward_workspace_size(&a, nullptr, nullptr, &bytes));
  refuse("cache query", "attention", cuflash_attend_cache_workspace_size(nullptr, &c, nullptr, &bytes));
  refuse("cache query", "cache_tensors", cuflash_attend_cache_workspace_size(&a, nullptr, nullptr, &bytes));
  refuse("explain forward", "attention", cuflash_explain_forward(nullptr, &f, nullptr, nullptr, 0, &bytes));
  refuse("explain forward", "forward_outputs", cuflash_explain_forward(&a, nullptr, nullptr, nullptr, 0, &bytes));
  refuse("explain backward", "attention", cuflash_explain_backward(nullptr, &b, nullptr, nullptr, 0, &bytes));
  refuse("explain backward", "backward_tensors", cuflash_explain_backward(&a, nullptr, nullptr, nullptr, 0, &bytes));
  refuse("explain cache", "attention", cuflash_explain_attend_cache(nullptr, &c, nullptr, nullptr, 0, &bytes));
  refuse("explain cache", "cache_tensors", cuflash_explain_attend_cache(&a, nullptr, nullptr, nullptr, 0, &bytes));
  refuse("merge", "merge_tensors", cuflash_merge_states(nullptr, nullptr));
  // Structs that were only initialized.
  misuse.check("forward: nothing given",
               why_not_refused(true, {"q", {"missing"}}, "it", cuflash_forward(&a, &f, nullptr)));
  misuse.check("backward: nothing given",
               why_not_refused(true, {"q", {"missing"}}, "it", cuflash_backward(&a, &b, nullptr)));
  misuse.check("cache: nothing given",
               why_not_refused(true, {"q", {"missing"}}, "it", cuflash_attend_cache(&a, &c, nullptr)));
}

}  // namespace
}  // namespace cuflash::rejections
