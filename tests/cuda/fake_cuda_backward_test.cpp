// Gradients of head size 128 on a fake Hopper GPU, by the kernels themselves, emulated on the host: see
// tests/cuda/kernel_emulator. A loader and a warpgroup of its own for dQ are all that other sizes do not have; options
// leave no room for them. The CPU backend computes the outputs.

#include <cstring>

#include "check/run/run.h"
#include "params.h"
#include "tests/cuda/fake_gpu/emulate.h"
#include "tests/cuda/fake_gpu/fake_cuda.h"
#include "tests/cuda/kernel_emulator/forward_kernel.h"
#include "tests/properties/property.h"

namespace cuflash::test {
namespace {

struct Running {
  uint64_t seed = 0;
  unsigned threads = 0;  // of the kernel
  std::string fault;
} running;

void run_kernel(const FakeLaunch& launch) {
  const auto runs = [&](const char* name) { return std::strstr(launch.program, name) != nullptr; };
  if (runs("sm90_forward<")) return emulate(static_cast<const Sm90ForwardParams*>(launch.params)->forward);
  if (runs("combine_splits<") || runs("sm90_tile_list<") || !running.fault.empty()) return;
  if (runs("sm90_backward<")) running.threads = launch.threads;
  running.fault =
      kernel_emulator::run_forward_kernel(launch.program, launch.params, {launch.grid_x, launch.grid_y, launch.grid_z},
                                          static_cast<int>(launch.threads), launch.shared_bytes, ++running.seed);
}

class FakeBackward : public ::testing::Test {
 protected:
  FakeBackward() { loaded_fake_cuda().on_launch = run_kernel; }
  ~FakeBackward() override { loaded_fake_cuda().on_launch = nullptr; }

  static void check(const check::Case& c, unsigned threads = 512) {
    running = {};
    const std::string fault = check::run_case(c);
    EXPECT_EQ(running.fault, "") << check::describe(c);
    EXPECT_EQ(fault, "") << check::describe(c);
    EXPECT_EQ(running.threads, threads) << check::describe(c);
  }
};

check::Case of_head_size_128(int64_t batch, int64_t heads, int64_t len_q, int64_t len_k) {
  check::Case c;
  c.device = Device::cuda, c.batch = batch, c.heads_q = heads, c.heads_k = 1, c.len_q = len_q, c.len_k = len_k;
  c.dim = c.dim_v = 128;
  c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = DType::bf16;
  c.gradients = {.dq = true, .dk = true, .dv = true};
  c.tile_stats = false;
  c.garbage = true;
  return c;
}

// Eight heads that share one are too many for a kernel for dQ alone beside the other. Tasks are parts of a key tile's heads
// and queries, whose sums are added up.
TEST_F(FakeBackward, HeadsOfAGroupEqualTheOracle) {
  check(of_head_size_128(1, 8, 150, 200));
  check::Case window = of_head_size_128(1, 8, 150, 300);
  window.window_left = 130, window.dlse_given = true;
  check(window);
}

// More tiles of keys than CTAs: some have a second task, whose first loads overlap with the end of the first.
TEST_F(FakeBackward, SecondTasksEqualTheOracle) {
  check(of_head_size_128(67, 2, 20, 140));
  check::Case padded = of_head_size_128(67, 1, 70, 140);
  padded.mode = check::Mode::padded;
  for (int32_t b = 0; b < 67; ++b) padded.lengths_q.push_back(b * 7 % 71), padded.lengths_k.push_back(b * 5 % 141);
  check(padded);
}

// A lane draws half of its decisions for each key, and its neighbour the others.
TEST_F(FakeBackward, DropoutEqualsTheOracle) {
  for (const double p : {0.3, 0.7}) {
    check::Case c = of_head_size_128(1, 8, 150, 200);
    c.dropout_p = p, c.dropout_seed = 5;
    check(c, 384);
  }
}

// An infinite key that only some queries see must not reach dQ of the others.
TEST_F(FakeBackward, HiddenKeysThatAreNotFinite) {
  check::Case c = of_head_size_128(1, 8, 150, 200);
  c.window_left = 60, c.live_nan = true;
  check(c);
}

}  // namespace
}  // namespace cuflash::test
