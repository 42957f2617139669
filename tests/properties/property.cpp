// RapidCheck's headers take longer to compile than most tests, so only this file includes them.
#include "tests/properties/property.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <unordered_map>
#include <vector>

#if defined(CUFLASH_HAVE_RAPIDCHECK)
#include <rapidcheck.h>
#include <rapidcheck/detail/TestListenerAdapter.h>
#endif

namespace cuflash::test {
namespace {

#if defined(CUFLASH_HAVE_RAPIDCHECK)

// "" or the report on the simplest failure found.
std::string find_failure(const std::string& name, int cases, const Body& body) {
  constexpr int kShrinkingRuns = 400;  // a second or two; then the simplest sequence so far is the answer
  constexpr auto kLargest = std::numeric_limits<uint32_t>::max();
  const auto number = rc::gen::resize(rc::kNominalSize, rc::gen::inRange<uint32_t>(0, kLargest));
  const auto numbers = rc::gen::container<std::vector<uint32_t>>(check::Choices::kLength, number);
  int runs_since_failure = 0;
  std::string simplest;  // the simplest failure so far: shrinking continues from the last one
  const auto testable = [&] {
    check::Choices choices(*numbers);
    if (runs_since_failure > kShrinkingRuns) return;
    const std::string failure = body(choices);
    if (runs_since_failure > 0 || !failure.empty()) ++runs_since_failure;
    if (failure.empty()) return;
    simplest = failure;
    RC_FAIL(failure);
  };
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = name;
  rc::detail::TestParams params;
  params.seed = test_seed();
  params.maxSuccess = cases;
  rc::detail::TestListenerAdapter silent;
  const std::unordered_map<std::string, rc::detail::Reproduce> nothing_to_repeat;
  const rc::detail::TestResult result =
      rc::detail::checkTestable(testable, metadata, params, silent, nothing_to_repeat);
  if (result.is<rc::detail::SuccessResult>() || !simplest.empty()) return simplest;
  std::ostringstream report;  // not a failure of the body: an exception, or too few cases
  rc::detail::printResultMessage(result, report);
  return report.str();
}

#else

std::string find_failure(const std::string&, int cases, const Body& body) {
  for (uint64_t index = 0; index < static_cast<uint64_t>(cases); ++index) {
    check::Choices choices = check::Choices::of_seed(test_seed(), index);
    const std::string failure = body(choices);
    if (!failure.empty()) return failure + " (case " + std::to_string(index) + ")";
  }
  return "";
}

#endif

}  // namespace

uint64_t test_seed() {
  const char* text = std::getenv("CUFLASH_TEST_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 20260715;
}

int scaled(int cases) {
  const char* text = std::getenv("CUFLASH_TEST_SCALE");
  const double scale = text ? std::strtod(text, nullptr) : 1;
  return std::max(1, static_cast<int>(cases * (scale > 0 ? scale : 1)));
}

void property(const std::string& name, int cases, const Body& body) {
  const std::string failure = find_failure(name, scaled(cases), body);
  EXPECT_TRUE(failure.empty()) << name << " does not hold: " << failure
                               << "\nreproduce: CUFLASH_TEST_SEED=" << test_seed() << " with this test alone";
}

}  // namespace cuflash::test
