// Random structs for all functions of the C ABI that describe a call without running it: sizes, explanations and, through the
// same validation, plans for GPUs. Every answer must be one of the contract's, a refusal must name an argument, and the size
// query, explain and the plans must agree.
//
// CUFLASH_TEST_SEED draws other structs, CUFLASH_TEST_SCALE=10 tries 300,000.
#include <cuflash/cuflash_pages.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>

#include "api/calls.h"
#include "cuda/backend.h"
#include "cuda/families/params_backward.h"
#include "cuda/families/params_forward.h"
#include "cuda/families/params_kv.h"
#include "cuda/families/summarize_mask.h"
#include "cuda/plan/plan.h"
#include "cuda/plan/tile_order.h"
#include "tests/api/random_structs.h"
#include "tests/properties/property.h"

extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());  // null without sanitizers

namespace cuflash::test {
namespace {

struct Answer {
  cuflash_status status;
  std::string text;  // the answer, or the refusal

  bool operator==(const Answer&) const = default;
};

std::string words(const Answer& a) { return join(cuflash_status_name(a.status), ": ", a.text); }

// "", or what is wrong with a single answer.
std::string fault_of(const Answer& a) {
  if (a.status == CUFLASH_OK) return a.text.empty() ? "said nothing" : "";
  if (a.status != CUFLASH_INVALID_ARGUMENT && a.status != CUFLASH_UNSUPPORTED && a.status != CUFLASH_NO_DEVICE)
    return "is no answer to such a question: " + words(a);
  if (a.status != CUFLASH_INVALID_ARGUMENT) return a.text.empty() ? "gave no reason" : "";
  size_t name = 0;
  while (name < a.text.size() && (std::islower(a.text[name]) || std::isdigit(a.text[name]) || a.text[name] == '_'))
    ++name;
  const bool named = name > 0 && a.text.compare(name, 2, ": ") == 0 && a.text.size() > name + 2;
  return named ? "" : "names no argument: " + words(a);
}

Answer answer_of(cuflash_status status, const std::string& text) {
  return {status, status == CUFLASH_OK ? text : cuflash_last_error()};
}

template <class Size, class Structs>
Answer ask_size(Size size, const cuflash_attention& a, const Structs& t, const cuflash_execution* e) {
  constexpr size_t kUntouched = 0x5aa55aa5;
  size_t bytes = kUntouched;
  const cuflash_status status = size(&a, &t, e, &bytes);
  if (status != CUFLASH_OK && bytes != kUntouched)
    return {CUFLASH_INTERNAL, "bytes was written by a query that failed"};
  return answer_of(status, join("workspace  ", bytes, " bytes"));
}

template <class Explain, class Structs>
Answer ask_why(Explain explain, const cuflash_attention& a, const Structs& t, const cuflash_execution* e) {
  char text[4096] = "";
  size_t needed = 0;
  const cuflash_status status = explain(&a, &t, e, text, sizeof text, &needed);
  if (status == CUFLASH_OK && needed != std::string(text).size() + 1)
    return {CUFLASH_INTERNAL, join("explain needs ", needed, " bytes for: ", text)};
  return answer_of(status, text);
}

// The explanation contains the size, and refusals are equal; for explain a missing device is an answer.
std::string disagreement(const Answer& size, const Answer& why) {
  if (size.status == CUFLASH_OK && why.status == CUFLASH_OK)
    return why.text.find(size.text) != std::string::npos ? "" : join("explained without ", size.text, ": ", why.text);
  const bool none = why.status == CUFLASH_OK && why.text.find("backend    none") != std::string::npos;
  if (size.status == CUFLASH_UNSUPPORTED && none) return "";
  if (size.status == CUFLASH_NO_DEVICE && (none || why.status == CUFLASH_INVALID_ARGUMENT)) return "";
  return size == why ? "" : join("the size query says ", words(size), "; explain says ", words(why));
}

template <class Size, class Explain, class Structs>
std::string fault_of_questions(Size size, Explain explain, const cuflash_attention& a, const Structs& t,
                               const cuflash_execution* e, cuflash_status& status) {
  const Answer first = ask_size(size, a, t, e), again = ask_size(size, a, t, e), why = ask_why(explain, a, t, e);
  status = first.status;
  if (!(first == again)) return join("asked twice: ", words(first), "; ", words(again));
  for (const Answer& one : {first, why})
    if (const std::string fault = fault_of(one); !fault.empty()) return fault;
  return disagreement(first, why);
}

// Turns exceptions into answers, as the C API does.
template <class Body>
Answer caught(Body body) {
  try {
    return {CUFLASH_OK, body()};
  } catch (const FlashAttentionError& error) {
    return {error.status(), error.what()};
  } catch (const std::exception& error) {
    return {CUFLASH_INTERNAL, error.what()};
  }
}

// The workspace of backward has at least 4 bytes per row; a smaller size has wrapped around.
void require_room_for_rows(const BackwardProblem& p, size_t bytes) {
  if (p.packed() && p.memory.on_cuda()) return;  // its number of rows is unknown
  const double rows = p.packed() ? p.cu_q[p.batch] : static_cast<double>(p.batch) * static_cast<double>(p.len_q);
  if (static_cast<double>(bytes) < 4 * rows * static_cast<double>(p.heads_q))
    throw std::logic_error(join(bytes, " bytes are too few for ", to_string(p)));
}

constexpr const char* kTargets[] = {"sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"};
constexpr Memory kDevice{.cuda_device = 0};

// Plans and kernel parameters, as far as they need no driver.
std::string planned(const ForwardProblem& p, const Execution& e, const cuda::Arch& arch) {
  const cuda::ForwardPlan plan = plan_forward(p, arch);
  cuda::forward_params(p, nullptr);
  if (plan.launch.persistent) cuda::tile_order(p, plan.tile_q, 132);
  return join("workspace  ", cuda::bytes_with_summary(p, plan, plan.workspace.size + (e.tile_stats ? 64 : 0)),
              " bytes");
}
std::string planned(const BackwardProblem& p, const Execution& e, const cuda::Arch& arch) {
  const cuda::BackwardPlan plan = plan_backward(p, arch, cuda::reproducible(e));
  cuda::backward_params(p, plan, nullptr, nullptr);
  require_room_for_rows(p, plan.workspace.size);
  return join("workspace  ", cuda::bytes_with_summary(p, plan, plan.workspace.size), " bytes");
}
std::string planned(const CacheProblem& p, const Execution& e, const cuda::Arch& arch) {
  const cuda::KvPlan plan = plan_kv(p, arch, arch.usual_sms);
  cuda::kv_params(p, plan, nullptr, nullptr);
  return join("workspace  ", plan.workspace.size + (e.tile_stats ? 64 : 0), " bytes");
}

template <class Structs>
std::string fault_of_plans(const cuflash_attention& a, const Structs& t, const cuflash_execution* e, Random& random) {
  const cuda::Arch arch = cuda::arch_named(kTargets[random.below(std::size(kTargets))]);
  const auto described = [&](auto use) {
    return caught([&] {
      const Execution how = read(e);
      Snapshot copies;
      return use(describe(read(&a), read(&t), kDevice, copies), how);
    });
  };
  const Answer size = described([&](const auto& p, const Execution& how) { return planned(p, how, arch); });
  const Answer why = described([&](const auto& p, const Execution& how) { return explain(p, how, arch); });
  for (const Answer& one : {size, why})
    if (const std::string fault = fault_of(one); !fault.empty()) return "on a device, " + fault;
  return disagreement(size, why);
}

// merge_states has no query; a refused call must have written nothing.
std::string fault_of_merge(const cuflash_merge_tensors& m, const cuflash_execution* e, cuflash_status& status) {
  const Answer here = caught([&] {
    read(e);
    describe(read(&m), Memory{});
    return std::string("described");
  });
  const Answer there = caught([&] {
    read(e);
    plan_merge(describe(read(&m), kDevice), cuda::arch_named("sm_90a"));
    return std::string("planned");
  });
  status = here.status;
  for (const Answer& one : {here, there})
    if (const std::string fault = fault_of(one); !fault.empty()) return fault;
  if (here.status == CUFLASH_OK || (e && e->device != CUFLASH_DEVICE_CPU)) return "";
  const Answer call = answer_of(cuflash_merge_states(&m, e), "merged");
  return call == here ? "" : join("describe says ", words(here), "; the call says ", words(call));
}

std::string fault_of(CallKind kind, uint64_t seed, cuflash_status& status) {
  RandomStructs s(kind, seed);
  Random random(~seed);
  const cuflash_execution* e = s.no_execution ? nullptr : &s.execution.get();
  const cuflash_attention& a = s.attention.get();
  std::string fault;
  // Lengths on a device are not read: unchanged at first.
  if (kind == CallKind::forward) fault = fault_of_plans(a, s.outputs.get(), e, random);
  if (kind == CallKind::backward) fault = fault_of_plans(a, s.gradients.get(), e, random);
  if (kind == CallKind::cache) fault = fault_of_plans(a, s.cache.get(), e, random);
  if (!fault.empty()) return fault;
  s.make_readable();
  switch (kind) {
    case CallKind::forward:
      return fault_of_questions(cuflash_forward_workspace_size, cuflash_explain_forward, a, s.outputs.get(), e, status);
    case CallKind::backward:
      fault = fault_of_questions(cuflash_backward_workspace_size, cuflash_explain_backward, a, s.gradients.get(), e,
                                 status);
      if (!fault.empty() || status != CUFLASH_OK) return fault;
      return fault_of(caught([&] {
        const Execution how = read(e);
        Snapshot copies;
        const BackwardProblem p = describe(read(&a), read(&s.gradients.get()), Memory{}, copies);
        require_room_for_rows(p, workspace_size(p, how));
        return std::string("has room");
      }));
    case CallKind::cache:
      return fault_of_questions(cuflash_attend_cache_workspace_size, cuflash_explain_attend_cache, a, s.cache.get(), e,
                                status);
    default: return fault_of_merge(s.merge.get(), e, status);
  }
}

// A sanitizer ends the program at once, without saying which input was wrong.
int input_at_hand = -1;

void name_input() {
  std::fprintf(stderr, "abi_fuzz_test: input %d of CUFLASH_TEST_SEED=%llu\n", input_at_hand,
               static_cast<unsigned long long>(test_seed()));
}

TEST(AbiFuzz, AnswersToRandomStructsAreOfTheContract) {
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(name_input);
  const int count = scaled(30000);
  std::map<std::pair<CallKind, cuflash_status>, int> answers;
  for (int n = 0; n < count; ++n) {
    const CallKind kind = kCallKinds[static_cast<size_t>(n) % std::size(kCallKinds)];
    const uint64_t seed = test_seed() * 1000003 + static_cast<uint64_t>(n);
    input_at_hand = n;
    cuflash_status status = CUFLASH_INTERNAL;
    const std::string fault = fault_of(kind, seed, status);
    ASSERT_EQ(fault, "") << "input " << n << " of CUFLASH_TEST_SEED=" << test_seed();
    ++answers[{kind, status}];
  }
  if (count < 1000) return;
  for (const CallKind kind : kCallKinds) {  // if nothing is accepted, or nothing refused, the fuzzer tests little
    EXPECT_GT(answers[std::pair(kind, CUFLASH_OK)], count / 40) << static_cast<int>(kind);
    EXPECT_GT(answers[std::pair(kind, CUFLASH_INVALID_ARGUMENT)], count / 40) << static_cast<int>(kind);
  }
}

// Small pools, and invalid sizes.
TEST(AbiFuzz, AnswersToRandomPoolsAreOfTheContract) {
  Random random(test_seed());
  for (int n = scaled(3000); n > 0; --n) {
    Padded<cuflash_page_pool_config> c;
    c.grow();
    cuflash_page_pool_config_init(&c.get());
    const auto number = [&] {
      return random.chance(5) ? random.one_of<int64_t>({0, -1, int64_t{1} << 31, int64_t{1} << 62, INT64_MIN})
                              : random.between(1, 50);
    };
    c.get().pages = number(), c.get().page_size = number(), c.get().max_sequences = number();
    c.get().max_pages_per_sequence = random.chance(2) ? 0 : number();
    if (random.chance(10)) c.get().struct_size = static_cast<size_t>(random.below(100000));
    cuflash_page_pool* pool = nullptr;
    const Answer answer = answer_of(cuflash_page_pool_create(&c.get(), &pool), "created");
    EXPECT_EQ(fault_of(answer), "") << n;
    EXPECT_EQ(pool != nullptr, answer.status == CUFLASH_OK);
    cuflash_page_pool_destroy(pool);
  }
}

}  // namespace
}  // namespace cuflash::test
