// The C ABI: use from C, structs of other versions, messages, explain's buffer.
#include "tests/api/c_api_test.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "api/adopt.h"
#include "tests/problem/rejections.h"

namespace cuflash {
namespace {

using rejections::Call;
using rejections::Direction;
using rejections::Sizes;

std::string text_of(const char* failure) { return failure ? failure : ""; }

TEST(CApi, ACProgramGetsTheResultsWorkedOutByHand) { EXPECT_EQ(text_of(c_forward_and_backward()), ""); }
TEST(CApi, ACProgramSharesPages) { EXPECT_EQ(text_of(c_page_pool()), ""); }
TEST(CApi, InitFunctionsSetTheDefaults) { EXPECT_EQ(text_of(c_init_functions()), ""); }

TEST(CApi, VersionIsThatOfTheHeader) {
  EXPECT_EQ(std::string(cuflash_version()),
            join(CUFLASH_VERSION_MAJOR, ".", CUFLASH_VERSION_MINOR, ".", CUFLASH_VERSION_PATCH));
}

TEST(CApi, EveryStatusHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int status = CUFLASH_OK; status <= CUFLASH_INTERNAL; ++status)
    names.insert(cuflash_status_name(static_cast<cuflash_status>(status)));
  EXPECT_EQ(names.size(), size_t{CUFLASH_INTERNAL} + 1);
  EXPECT_EQ(names.count(""), 0u);
}

// A program built against an older header, whose struct ended before num_threads.
TEST(CApi, FieldsThatAShorterStructLacksKeepTheirDefaults) {
  cuflash_execution given;
  cuflash_execution_init(&given);
  given.device = CUFLASH_DEVICE_CPU;
  given.num_threads = -77;  // not part of it: must not be read
  const size_t first_size = offsetof(cuflash_execution, num_threads);
  given.struct_size = first_size;
  const cuflash_execution adopted = adopt("execution", &given, cuflash_execution_init, first_size);
  EXPECT_EQ(adopted.device, CUFLASH_DEVICE_CPU);
  EXPECT_EQ(adopted.num_threads, 0);
  EXPECT_EQ(adopted.struct_size, sizeof adopted);
}

TEST(CApi, DefaultsOfMissingFieldsAreThoseOfInitNotZero) {
  cuflash_attention given;
  cuflash_attention_init(&given);
  given.window_right = 12345;  // not part of it
  const size_t first_size = offsetof(cuflash_attention, window_right);
  given.struct_size = first_size;
  EXPECT_EQ(adopt("attention", &given, cuflash_attention_init, first_size).window_right, -1);
}

TEST(CApi, TheLastErrorSurvivesASuccess) {
  Call bad(Sizes{});
  bad.attention.softcap = -1;
  ASSERT_EQ(bad.run(), CUFLASH_INVALID_ARGUMENT);
  const std::string message = cuflash_last_error();
  EXPECT_NE(message, "");
  ASSERT_EQ(Call(Sizes{}).run(), CUFLASH_OK);
  EXPECT_EQ(cuflash_last_error(), message);
}

TEST(CApi, TheLastErrorBelongsToItsThread) {
  Call bad(Sizes{});
  bad.attention.softcap = -1;
  ASSERT_EQ(bad.run(), CUFLASH_INVALID_ARGUMENT);
  const std::string message = cuflash_last_error();
  std::string before = "?", after = "?";
  std::thread other([&] {
    before = cuflash_last_error();
    Call worse(Sizes{});
    worse.attention.dropout_p = 2;
    worse.run();
    after = cuflash_last_error();
  });
  other.join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after.rfind("dropout_p:", 0), 0u) << after;
  EXPECT_EQ(cuflash_last_error(), message);
}

TEST(CApi, CxxCallsThrowTheStatusAndTheMessage) {
  float one = 1;
  const ConstTensor t = bhsd(&one, 1, 1, 1, 1);
  try {
    flash_attention_forward({.q = t, .k = t, .v = t, .softcap = -3}, {.o = bhsd(&one, 1, 1, 1, 1)});
    FAIL() << "must throw";
  } catch (const FlashAttentionError& error) {
    EXPECT_EQ(error.status(), CUFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(error.what()), cuflash_last_error());
    EXPECT_NE(std::string(error.what()).find("softcap"), std::string::npos);
  }
}

class Explain : public testing::TestWithParam<Direction> {
 protected:
  Call call{Sizes{.direction = GetParam()}};
};

TEST_P(Explain, FillsABufferOfAnyCapacityAndSaysHowMuchItNeeds) {
  size_t needed = 0;
  ASSERT_EQ(call.explain(nullptr, 0, &needed), CUFLASH_OK) << cuflash_last_error();
  ASSERT_GT(needed, 1u);
  std::string whole(needed, '?');
  ASSERT_EQ(call.explain(whole.data(), needed, &needed), CUFLASH_OK);
  EXPECT_EQ(whole.find('\0'), needed - 1) << "the terminator is the last byte of the size it asks for";
  for (const size_t capacity : {size_t{1}, size_t{2}, size_t{10}, needed - 1, needed, needed + 5}) {
    std::string text(capacity + 8, '?');
    size_t needed_again = 0;
    ASSERT_EQ(call.explain(text.data(), capacity, &needed_again), CUFLASH_OK);
    EXPECT_EQ(needed_again, needed);
    const size_t length = std::min(capacity, needed) - 1;
    EXPECT_EQ(text.substr(0, length), whole.substr(0, length)) << capacity;
    EXPECT_EQ(text[length], '\0') << capacity;
    EXPECT_EQ(text.substr(capacity), "????????") << "wrote beyond a capacity of " << capacity;
  }
  EXPECT_TRUE(call.outputs_untouched()) << "explain computes nothing";
}

TEST_P(Explain, NeedsNoPlaceForTheSizeButOneForTheText) {
  std::string text(4096, '?');
  EXPECT_EQ(call.explain(text.data(), text.size(), nullptr), CUFLASH_OK);
  EXPECT_EQ(call.explain(nullptr, 16, nullptr), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(cuflash_last_error()).rfind("text:", 0), 0u) << cuflash_last_error();
}

TEST_P(Explain, NamesTheBackendAndTheProblem) {
  std::string text(4096, '\0');
  ASSERT_EQ(call.explain(text.data(), text.size(), nullptr), CUFLASH_OK);
  for (const char* part : {"cpu", "f32", "Hq=4", "Hk=2", "D=5", "Dv=6"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST_P(Explain, RefusesWhatTheCallRefuses) {
  call.attention.window_left = -5;
  size_t needed = 77;
  std::string text(64, '?');
  EXPECT_EQ(call.explain(text.data(), text.size(), &needed), CUFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(needed, 77u);
  EXPECT_EQ(text, std::string(64, '?'));
}

// Callers use explain to learn why a problem is not served, so a missing device is an answer, not an error.
TEST_P(Explain, SaysWhyNoBackendServes) {
  call.execution.device = CUFLASH_DEVICE_CUDA;
  std::string text(4096, '\0');
  ASSERT_EQ(call.explain(text.data(), text.size(), nullptr), CUFLASH_OK) << cuflash_last_error();
  EXPECT_NE(text.find("none"), std::string::npos) << text;
  EXPECT_NE(text.find("cuda"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(CApi, Explain, testing::Values(Direction::forward, Direction::backward),
                         [](const auto& instance) { return name_of(instance.param); });

}  // namespace
}  // namespace cuflash
