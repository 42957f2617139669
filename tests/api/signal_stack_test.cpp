// AMX tile registers and the signal stacks of a process. The tests pass on every processor, and can only fail on one with
// tiles.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/isa/kernels.h"
#include "cpu/isa/tile_permission.h"
#include "dtype.h"

namespace cuflash::cpu {
namespace {

constexpr size_t kCommonStack = 8192;  // SIGSTKSZ while it was a constant

// 0, or errno.
int set_signal_stack(size_t bytes) {
  static std::vector<char> memory;
  memory.resize(bytes);
  stack_t stack{};
  stack.ss_sp = memory.data(), stack.ss_size = bytes;
  return ::sigaltstack(&stack, nullptr) == 0 ? 0 : errno;
}

struct Case {
  static constexpr int64_t kHeads = 2, kLength = 64, kDim = 32, kElements = kHeads * kLength * kDim;
  explicit Case(DType type) : type(type), ones(kElements), results(4 * kElements) {
    const std::vector<float> values(kElements, 1.0f);
    store_row(ones.data(), type, 0, kElements, values.data());
  }
  Tensor rows(double* data) const { return contiguous(static_cast<void*>(data), type, 1, kHeads, kLength, kDim); }
  Attention attention() { return {.q = rows(ones.data()), .k = rows(ones.data()), .v = rows(ones.data())}; }
  ForwardOutputs outputs() { return {.o = rows(results.data()), .lse = lse()}; }
  Tensor lse() {
    const DType sums = type == DType::f64 ? DType::f64 : DType::f32;
    return contiguous(static_cast<void*>(results.data() + kElements), sums, 1, kHeads, kLength);
  }
  // Values are 1, so every result is; and the gradient of q is 0.
  bool runs() {
    flash_attention_forward(attention(), outputs());
    std::vector<float> o(kElements);
    load_row(results.data(), type, 0, kElements, o.data());
    for (const float x : o)
      if (!(std::abs(x - 1) < 0.01f)) return false;
    flash_attention_backward(attention(), {.o = rows(results.data()),
                                           .lse = lse(),
                                           .dout = rows(ones.data()),
                                           .dq = rows(results.data() + 2 * kElements)});
    return true;
  }

  DType type;
  std::vector<double> ones, results;
};

// Each test runs in a separate process, since a permission cannot be revoked.
class SignalStackDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void exit_after_calls_without_matrices() {
  for (const DType type : {DType::f32, DType::f64, DType::f16}) {
    if (type == DType::f16 && isa_name() == std::string("amx_fp16")) continue;
    Case c(type);
    if (!c.runs() || explain(c.attention(), c.outputs()).empty()) ::_exit(1);
  }
  isa_names(), isa_name();
  ::_exit(set_signal_stack(kCommonStack) == 0 ? 0 : 2);
}

TEST_F(SignalStackDeathTest, OfTheCommonSizeIsAcceptedAfterCallsWithoutMatrices) {
  EXPECT_EXIT(exit_after_calls_without_matrices(), testing::ExitedWithCode(0), "");
}

// Few rows of 16-bit types are widened if the decode path has no matrix instructions.
[[noreturn]] void exit_after_decode() {
  for (const DType type : {DType::bf16, DType::f16}) {
    Case c(type);
    Attention attention = c.attention();
    ForwardOutputs outputs{.o = c.rows(c.results.data())};
    attention.q.shape[2] = outputs.o.shape[2] = 1;
    flash_attention_forward(attention, outputs);
  }
  ::_exit(set_signal_stack(kCommonStack) == 0 ? 0 : 2);
}

TEST_F(SignalStackDeathTest, OfTheCommonSizeIsAcceptedAfterADecodeStep) {
  EXPECT_EXIT(exit_after_decode(), testing::ExitedWithCode(0), "");
}

// If the stack is installed first, Linux refuses the tiles, and bf16 is computed without them.
[[noreturn]] void exit_after_bf16_with_a_small_stack() {
  if (set_signal_stack(kCommonStack) != 0) ::_exit(1);
  Case c(DType::bf16);
  if (!c.runs()) ::_exit(2);
  const std::string text = explain(c.attention(), c.outputs());
  const bool refused = text.find(join("\nnot ", isa_name())) != std::string::npos &&
                       text.find(" a thread of this process has a signal stack") != std::string::npos;
  const bool widened = text.find("kernel     avx512, bf16 widened to f32") != std::string::npos;
  if (std::string(isa_name()).starts_with("amx")) ::_exit(refused && widened ? 0 : 3);
  ::_exit(refused ? 4 : 0);
}

TEST_F(SignalStackDeathTest, ThatIsTooSmallForTilesKeepsBf16FromThem) {
  EXPECT_EXIT(exit_after_bf16_with_a_small_stack(), testing::ExitedWithCode(0), "");
}

volatile sig_atomic_t handled = 0;

[[noreturn]] void exit_after_bf16() {
  Case c(DType::bf16);
  if (!c.runs()) ::_exit(1);
  if (explain(c.attention(), c.outputs()).find("not amx") != std::string::npos) ::_exit(2);
  // Every program should allocate the size that the system reports, plus what its handler needs.
  if (set_signal_stack(::getauxval(AT_MINSIGSTKSZ) + 16384) != 0) ::_exit(3);
  struct sigaction action {};
  action.sa_handler = [](int) { handled = 1; };
  action.sa_flags = SA_ONSTACK;
  ::sigaction(SIGUSR1, &action, nullptr);
  ::raise(SIGUSR1);
  ::_exit(handled && c.runs() ? 0 : 4);
}

TEST_F(SignalStackDeathTest, OfTheSystemsSizeServesAfterCallsOfBf16) {
  EXPECT_EXIT(exit_after_bf16(), testing::ExitedWithCode(0), "");
}

// Needs no processor with tiles: what is requested from Linux, and when.
struct FakeLinux {
  static inline uint64_t features = 0;
  static inline int error = 0, requests = 0;
  static long arch_prctl(long operation, uintptr_t argument) {
    if (operation == kGetSupportedFeatures) {
      std::memcpy(reinterpret_cast<void*>(argument), &features, sizeof features);
    } else {
      EXPECT_EQ(operation, kRequestPermission);
      EXPECT_EQ(argument, kTileData);
      ++requests;
    }
    errno = error;
    return error ? -1 : 0;
  }
  FakeLinux() { features = 0, error = 0, requests = 0; }
};

TEST(TilePermission, LookingForTilesDoesNotRequestThem) {
  const FakeLinux linux_;
  EXPECT_FALSE(offers_tiles(FakeLinux::arch_prctl));
  FakeLinux::features = uint64_t{1} << kTileData;
  EXPECT_TRUE(offers_tiles(FakeLinux::arch_prctl));
  FakeLinux::error = EINVAL;  // Linux before 5.16
  EXPECT_FALSE(offers_tiles(FakeLinux::arch_prctl));
  EXPECT_EQ(FakeLinux::requests, 0);
}

TEST(TilePermission, ARefusalHasItsReason) {
  const FakeLinux linux_;
  EXPECT_EQ(refusal_of_tiles(FakeLinux::arch_prctl), "");
  EXPECT_EQ(FakeLinux::requests, 1);
  FakeLinux::error = ENOSPC;
  EXPECT_NE(refusal_of_tiles(FakeLinux::arch_prctl).find("signal stack (sigaltstack) that is too small"),
            std::string::npos);
  FakeLinux::error = EPERM;
  EXPECT_EQ(refusal_of_tiles(FakeLinux::arch_prctl), "Linux refuses the tile registers: Operation not permitted");
}

}  // namespace
}  // namespace cuflash::cpu
