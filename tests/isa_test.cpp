// Every instruction set that this processor can run computes the same contract.
#include "cpu/kernels.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "check/sweep.h"
#include "tests/property.h"

namespace cuflash::cpu {
namespace {

class EveryIsa : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { force_isa(GetParam()); }
  void TearDown() override { force_isa(nullptr); }
};

TEST_P(EveryIsa, IsTheOneInUse) { EXPECT_STREQ(isa_name(), GetParam()); }

TEST_P(EveryIsa, EqualsTheOracle) {
  const check::SweepResult result = check::sweep(11, 0, static_cast<uint64_t>(test::scaled(1500)));
  for (const check::SweepFailure& failure : result.failures)
    ADD_FAILURE() << "CUFLASH_CPU_ISA=" << GetParam() << " " << failure.reproduction << ": " << failure.failure;
  EXPECT_EQ(result.failed, 0u);
}

INSTANTIATE_TEST_SUITE_P(Isa, EveryIsa, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Isa, TheBestComesLastAndIsTheDefault) {
  if (std::getenv("CUFLASH_CPU_ISA")) GTEST_SKIP() << "CUFLASH_CPU_ISA is set";
  EXPECT_STREQ(isa_name(), isa_names().back());
}

// The variable is read once, so the question is put in a process that has not asked before.
TEST(IsaDeathTest, AnUnknownOneInTheEnvironmentIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("CUFLASH_CPU_ISA", "z80", 1);
  EXPECT_EXIT(
      {
        try {
          isa_name();
        } catch (const FlashAttentionError& error) {
          std::fputs(error.what(), stderr);
          std::exit(error.status() == CUFLASH_UNSUPPORTED ? 3 : 4);
        }
        std::exit(0);
      },
      testing::ExitedWithCode(3), "CUFLASH_CPU_ISA: .z80. is no instruction set");
  unsetenv("CUFLASH_CPU_ISA");
}

}  // namespace
}  // namespace cuflash::cpu
