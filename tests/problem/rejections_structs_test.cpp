// Rules about the structs themselves and about the execution: pointers, sizes, device, threads, workspace.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "check/memory/device.h"
#include "tests/problem/first_size.h"
#include "tests/problem/rejections.h"
#include "tests/properties/property.h"

namespace cuflash::rejections {
namespace {

using Result = std::optional<Refusal>;

// A struct argument of the call and the pointer through which it is passed.
template <class Struct>
struct Passed {
  const char* name;
  Struct& value;
  const Struct*& argument;
};

// Calls use(Passed) with one of the call's structs.
template <class Use>
Refusal with_struct(Call& call, uint32_t which, Use use) {
  if (which == 0) return use(Passed<cuflash_attention>{"attention", call.attention, call.attention_argument});
  if (which == 1) return use(Passed<cuflash_execution>{"execution", call.execution, call.execution_argument});
  if (!call.backward())
    return use(Passed<cuflash_forward_outputs>{"forward_outputs", call.outputs, call.outputs_argument});
  return use(Passed<cuflash_backward_tensors>{"backward_tensors", call.tensors, call.tensors_argument});
}
constexpr const char* kStructs[] = {"attention", "execution", "tensors"};

// Passes a copy that is `extra` bytes longer than the struct this library knows, all of them 0.
template <class Struct>
std::byte* pass_longer(Call& call, const Passed<Struct>& passed, size_t extra) {
  std::byte* copy = call.scratch(sizeof(Struct) + extra);
  std::memcpy(copy, &passed.value, sizeof(Struct));
  auto* longer = reinterpret_cast<Struct*>(copy);
  longer->struct_size = sizeof(Struct) + extra;
  passed.argument = longer;
  return copy;
}

void add_struct_rules(std::vector<Rule>& rules, uint32_t which) {
  const std::string name = kStructs[which];
  rules.push_back({name + " struct_size is too small", [=](Call& call, Choices& choices) -> Result {
                     return with_struct(call, which, [&]<class Struct>(Passed<Struct> passed) {
                       const size_t first = first_size<Struct>();
                       const size_t size = choices.one_of<size_t>({0, 1, sizeof(size_t), first - 1});
                       passed.value.struct_size = size;
                       return Refusal{passed.name, {"struct_size", text(size), text(first)}};
                     });
                   }});
  rules.push_back({name + " has an unknown field that is set", [=](Call& call, Choices& choices) -> Result {
                     return with_struct(call, which, [&]<class Struct>(Passed<Struct> passed) {
                       const size_t extra = choices.one_of<size_t>({8, 1, 200});
                       std::byte* copy = pass_longer(call, passed, extra);
                       copy[sizeof(Struct) + choices.below(static_cast<uint32_t>(extra))] = std::byte{1};
                       return Refusal{passed.name, {"struct_size", text(sizeof(Struct) + extra), text(sizeof(Struct))}};
                     });
                   }});
  if (name == "execution") return;  // may be NULL
  rules.push_back({name + " is NULL", [=](Call& call, Choices&) -> Result {
                     return with_struct(call, which, [&]<class Struct>(Passed<Struct> passed) {
                       passed.argument = nullptr;
                       return Refusal{passed.name, {"NULL"}};
                     });
                   }});
}

void add_execution_rules(std::vector<Rule>& rules) {
  const auto add = [&](const char* what, Refusal (*broken)(Call&, Choices&)) {
    rules.push_back({what, [=](Call& call, Choices& choices) -> Result { return broken(call, choices); }});
  };
  add("device is unknown", [](Call& call, Choices& choices) {
    call.execution.device = choices.one_of<int32_t>({3, -1, std::numeric_limits<int32_t>::max()});
    return Refusal{"device", {text(call.execution.device)}};
  });
  add("num_threads is negative", [](Call& call, Choices& choices) {
    call.execution.num_threads = choices.one_of<int32_t>({-1, std::numeric_limits<int32_t>::min()});
    return Refusal{"num_threads", {text(call.execution.num_threads)}};
  });
  add("workspace is misaligned", [](Call& call, Choices& choices) {
    call.execution.workspace_size = 1 << 20;
    call.execution.workspace =
        call.scratch(call.execution.workspace_size + 64) + choices.one_of<size_t>({8, 1, 32, 63});
    return Refusal{"workspace", {"aligned", "64"}};
  });
  add("workspace is NULL but has a size", [](Call& call, Choices& choices) {
    call.execution.workspace_size = choices.one_of<size_t>({1, 64, 1 << 20});
    return Refusal{"workspace", {"NULL", text(call.execution.workspace_size)}};
  });
}

std::vector<Rule> struct_rules() {
  std::vector<Rule> rules;
  for (uint32_t which = 0; which < std::size(kStructs); ++which) add_struct_rules(rules, which);
  add_execution_rules(rules);
  return rules;
}

TEST(StructRejections, EveryRule) { expect_all_refused(struct_rules()); }

TEST(StructRejections, RandomInvalidStructsAreRefused) {
  const std::vector<Rule> rules = struct_rules();
  test::property("an invalid struct is refused", 1000,
                 [&](Choices& choices) { return random_refusal(rules, choices); });
}

TEST(StructRejections, LongerStructsWithNothingSetAreAccepted) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (uint32_t which = 0; which < std::size(kStructs); ++which) {
      Call call(Sizes{.direction = direction});
      with_struct(call, which, [&](auto passed) {
        pass_longer(call, passed, 24);
        return Refusal{};
      });
      EXPECT_EQ(call.run(), CUFLASH_OK) << kStructs[which] << ": " << cuflash_last_error();
    }
  }
}

TEST(StructRejections, NoExecutionIsTheDefaultOne) {
  Call call(Sizes{});
  call.execution_argument = nullptr;
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
}

class Workspace : public testing::TestWithParam<Direction> {};

TEST_P(Workspace, OfTheQueriedSizeIsEnoughAndOneByteLessIsNot) {
  for (const Mode mode : {Mode::dense, Mode::padded, Mode::packed}) {
    Call call(Sizes{.direction = GetParam(), .mode = mode});
    size_t bytes = 0;
    ASSERT_EQ(call.workspace_size(&bytes), CUFLASH_OK) << cuflash_last_error();
    ASSERT_GT(bytes, 0u);
    std::byte* memory = call.scratch(bytes);
    call.execution.workspace = memory;
    call.execution.workspace_size = bytes - 1;
    EXPECT_EQ(call.run(), CUFLASH_INVALID_ARGUMENT);
    const std::string message = cuflash_last_error();
    EXPECT_EQ(message.rfind("workspace:", 0), 0u) << message;
    EXPECT_NE(message.find(std::to_string(bytes)), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(bytes - 1)), std::string::npos) << message;
    EXPECT_TRUE(call.outputs_untouched());
    call.execution.workspace_size = bytes;
    EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  }
}

TEST_P(Workspace, QueryNeedsAPlaceForItsAnswer) {
  const Call call(Sizes{.direction = GetParam()});
  EXPECT_EQ(call.workspace_size(nullptr), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(cuflash_last_error()).rfind("bytes:", 0), 0u) << cuflash_last_error();
}

INSTANTIATE_TEST_SUITE_P(StructRejections, Workspace, testing::Values(Direction::forward, Direction::backward),
                         [](const auto& instance) { return name_of(instance.param); });

TEST(StructRejections, AnExecutionOfTheFirstVersionIsServed) {
  Call call(Sizes{});
  call.execution.struct_size = first_size<cuflash_execution>();
  call.execution.check_lengths = -1;  // beyond the end of what such a program passes
  EXPECT_EQ(call.run(), CUFLASH_OK) << cuflash_last_error();
  EXPECT_FALSE(call.outputs_untouched());
}

// The device is refused on a machine without a GPU, and the memory of the tensors on one with a GPU.
TEST(StructRejections, CudaWithHostMemoryIsRefused) {
  const bool gpu = check::why_no_cuda().empty();
  const cuflash_status expected = gpu ? CUFLASH_INVALID_ARGUMENT : CUFLASH_NO_DEVICE;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    Call call(Sizes{.direction = direction});
    call.execution.device = CUFLASH_DEVICE_CUDA;
    EXPECT_EQ(call.run(), expected);
    EXPECT_EQ(std::string(cuflash_last_error()).rfind(gpu ? "q:" : "device:", 0), 0u) << cuflash_last_error();
    EXPECT_TRUE(call.outputs_untouched());
    size_t bytes = 0;
    EXPECT_EQ(call.workspace_size(&bytes), expected);
  }
}

}  // namespace
}  // namespace cuflash::rejections
