#include "tests/shared/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "check/run/sweep.h"
#include "cpu/isa/kernels.h"

namespace cuflash::test {
namespace {

// ctest looks for the words of both; see tests/CMakeLists.txt.
class NeedsDevice : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!on_cuda()) return;
    if (const std::string why = check::why_no_cuda(); !why.empty()) GTEST_SKIP() << "no GPU for this test: " << why;
  }
};

const ::testing::Environment* const needs_device = ::testing::AddGlobalTestEnvironment(new NeedsDevice);

// A test that repeats another one with a lesser instruction set would only repeat it with the best one.
class NeedsLesserIsa : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* lesser = std::getenv("CUFLASH_TEST_LESSER_ISA");
    if (lesser && std::string_view(lesser) == cpu::isa_names().back())
      GTEST_SKIP() << lesser << " is the best instruction set here, which the plain test takes";
  }
};

const ::testing::Environment* const needs_lesser_isa = ::testing::AddGlobalTestEnvironment(new NeedsLesserIsa);

}  // namespace

Device test_device() {
  static const char* const name = std::getenv("CUFLASH_TEST_DEVICE");
  return name && std::string_view(name) == "cuda" ? Device::cuda : Device::cpu;
}

check::Limits test_limits(int64_t work) {
  constexpr uint64_t kSeed = 1;  // the sweep of `make gpu-test` compiles the same kernels
  constexpr size_t kHeadSizes = 3;
  check::Limits limits = on_cuda() ? check::cuda_limits(kSeed, kHeadSizes) : check::Limits{};
  limits.work = work;
  return limits;
}

}  // namespace cuflash::test
