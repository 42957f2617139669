// Environment variables: an invalid value is refused with one sentence that names the variable.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "error.h"

namespace cuflash {
namespace {

// A plain call on the CPU, in a process that has not read the variable yet. Exits with 0, or prints the sentence and exits
// with the status.
[[noreturn]] void exit_with_call(const char* name, const char* value, int64_t length) {
  ::setenv(name, value, 1);
  const std::vector<float> ones(static_cast<size_t>(4 * length * 8), 1.0f);
  std::vector<float> o(ones.size());
  const auto rows = [=](auto* data) { return bhsd(data, 1, 4, length, 8); };
  try {
    flash_attention_forward({.q = rows(ones.data()), .k = rows(ones.data()), .v = rows(ones.data())},
                            {.o = rows(o.data())});
  } catch (const FlashAttentionError& error) {
    std::fputs(error.what(), stderr);
    ::_exit(static_cast<int>(error.status()));
  }
  ::_exit(0);
}

class SettingsDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static void expect_accepted(const char* name, const std::vector<const char*>& values) {
    for (const char* value : values)
      EXPECT_EXIT(exit_with_call(name, value, 64), testing::ExitedWithCode(0), "") << name << "=" << value;
  }
  static void expect_refused(const char* name, const std::vector<const char*>& values, const std::string& allowed,
                             int status = CUFLASH_INVALID_ARGUMENT) {
    for (const char* value : values)
      for (const int64_t length : {4, 64})  // few queries take another path
        EXPECT_EXIT(exit_with_call(name, value, length), testing::ExitedWithCode(status),
                    "^" + std::string(name) + ": .*" + value + ".*" + allowed)
            << name << "=" << value << ", " << length << " queries";
  }
};

TEST_F(SettingsDeathTest, NumThreads) {
  expect_accepted("CUFLASH_NUM_THREADS", {"", "0", "1", "7", "1024"});
  expect_refused("CUFLASH_NUM_THREADS", {"abc", "4x", " 4", "4 ", "3.5", "-1", "1025", "99999999999999999999", "0x4"},
                 "must be a whole number from 1 to 1024, or 0 for every core that this process may use");
}

TEST_F(SettingsDeathTest, CpuIsa) {
  expect_accepted("CUFLASH_CPU_ISA", {""});
  expect_refused("CUFLASH_CPU_ISA", {"z80", "auto", "best"},
                 "is not an instruction set of this processor and build; available:", CUFLASH_UNSUPPORTED);
}

TEST_F(SettingsDeathTest, Tuned) {
  expect_accepted("CUFLASH_TUNED", {"", "on", "off"});
  expect_refused("CUFLASH_TUNED", {"xx", "1", "ON"}, "must be on or off");
}

// They only affect calls on a GPU, but an invalid value is refused everywhere.
TEST_F(SettingsDeathTest, JitAndCudaKernels) {
  expect_accepted("CUFLASH_JIT", {"", "on", "off"});
  expect_refused("CUFLASH_JIT", {"perhaps", "0"}, "must be on or off");
  expect_accepted("CUFLASH_CUDA_KERNELS", {"", "portable", "best"});
  expect_refused("CUFLASH_CUDA_KERNELS", {"fastest", "hopper"}, "must be portable or best");
}

// An unusable cache or pack costs time but never fails a call; cuflash info says what is wrong.
TEST_F(SettingsDeathTest, CacheDirAndPackAreNeverFatal) {
  expect_accepted("CUFLASH_CACHE_DIR", {"", "/proc/cuflash", "/dev/null", "nowhere/at/all"});
  expect_accepted("CUFLASH_PACK", {"", "/nowhere", "/dev/null", "/tmp"});
}

}  // namespace
}  // namespace cuflash
