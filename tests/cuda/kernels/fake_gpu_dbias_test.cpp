// dBias on a fake Hopper GPU, by the kernel itself, emulated on the host: see tests/cuda/kernel_emulator. The other
// gradients are computed by the CPU backend.

#include <cstring>

#include "backward_params.h"
#include "check/run/run.h"
#include "params.h"
#include "tests/cuda/fake_gpu/emulate.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"
#include "tests/cuda/kernel_emulator/dbias_kernel.h"
#include "tests/properties/property.h"

namespace cuflash::test {
namespace {

using check::Extent;

struct Running {
  uint64_t seed = 0;
  int launches = 0;  // launches of the dBias kernel
  int parts = 0;     // parts of each of its tiles
  unsigned threads = 0;
  std::string fault;
} running;

void run_kernel(const FakeLaunch& launch) {
  const auto runs = [&](const char* name) { return std::strstr(launch.program, name) != nullptr; };
  if (runs("summarize_mask<")) return emulate(*static_cast<const MaskSummaryParams*>(launch.params));
  if (runs("sm90_forward<")) return emulate(static_cast<const Sm90ForwardParams*>(launch.params)->forward);
  if (runs("sm90_backward<")) {
    BackwardParams others = static_cast<const Sm90BackwardParams*>(launch.params)->backward;
    others.dbias = {};
    return emulate(others);
  }
  const bool dbias = runs("sm90_dbias<");
  if ((!dbias && !runs("backward_prepare<")) || !running.fault.empty()) return;
  running.fault =
      kernel_emulator::run_dbias_kernel(launch.program, launch.params, {launch.grid_x, launch.grid_y, launch.grid_z},
                                        static_cast<int>(launch.threads), launch.shared_bytes, ++running.seed);
  if (!dbias) return;
  ++running.launches, running.threads = launch.threads;
  running.parts = static_cast<const Sm90BackwardParams*>(launch.params)->backward.dbias_parts;
}

class FakeDbias : public ::testing::Test {
 protected:
  FakeDbias() { loaded_fake_gpu().on_launch = run_kernel; }
  ~FakeDbias() override { loaded_fake_gpu().on_launch = nullptr; }

  static void check(const check::Case& c) {
    running = {};
    const std::string fault = check::run_case(c);
    EXPECT_EQ(running.fault, "") << check::describe(c);
    EXPECT_EQ(fault, "") << check::describe(c);
    EXPECT_GT(running.launches, 0) << check::describe(c);
  }
};

check::Case biased(int64_t len_q, int64_t len_k, std::array<Extent, 3> extents) {
  check::Case c;
  c.device = Device::cuda, c.batch = 2, c.heads_q = 2, c.heads_k = 1, c.len_q = len_q, c.len_k = len_k;
  c.dim = c.dim_v = 64;
  c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = c.bias_dtype = c.sink_dtype = DType::bf16;
  c.bias = check::ScoreLayout{};
  c.bias->extents = extents;
  c.gradients = {.dq = true, .dk = true, .dv = true, .dbias = true};
  c.tile_stats = false;
  c.garbage = true;
  return c;
}

constexpr Extent kFull = Extent::full, kOne = Extent::one, kRepeated = Extent::repeated;

TEST_F(FakeDbias, EveryBroadcastEqualsTheOracle) {
  for (const auto& extents :
       {std::array{kFull, kFull, kFull}, std::array{kOne, kFull, kFull}, std::array{kFull, kOne, kFull},
        std::array{kRepeated, kOne, kFull}, std::array{kFull, kFull, kOne}, std::array{kOne, kOne, kRepeated}}) {
    check(biased(100, 136, extents));
    check::Case causal = biased(140, 136, extents);
    causal.causal = true;
    check(causal);
  }
}

// Sequences of up to 64 queries have one consumer warpgroup.
TEST_F(FakeDbias, ShortSequencesEqualTheOracle) {
  for (const auto& extents :
       {std::array{kFull, kFull, kFull}, std::array{kOne, kFull, kFull}, std::array{kFull, kOne, kOne}}) {
    check::Case c = biased(49, 56, extents);
    c.causal = extents[1] == kOne;
    check(c);
    EXPECT_EQ(running.threads, 256u);
  }
  check(biased(64, 128, {kOne, kOne, kFull}));
  EXPECT_EQ(running.parts, 4);
}

// With more (batch, head) pairs than CTAs, a task visits several, whose coordinates differ in nothing else.
TEST_F(FakeDbias, VisitsOfManyHeadsEqualTheOracle) {
  check::Case c = biased(5, 8, {kOne, kOne, kFull});
  c.batch = 150, c.causal = true;
  check(c);
  EXPECT_EQ(running.parts, 264);
}

TEST_F(FakeDbias, PartsOfATileAreAddedUp) {
  check(biased(70, 64, {kOne, kOne, kFull}));
  EXPECT_EQ(running.parts, 4);
  check(biased(70, 64, {kFull, kFull, kFull}));
  EXPECT_EQ(running.parts, 1);
}

TEST_F(FakeDbias, TilesThatNoQuerySeesAreZero) {
  for (const Extent rows : {kFull, kOne}) {
    check::Case c = biased(300, 264, {kOne, kFull, rows});
    c.causal = true, c.window_left = 17;
    check(c);
  }
}

TEST_F(FakeDbias, LengthsOfSequences) {
  check::Case padded = biased(150, 136, {kOne, kFull, kFull});
  padded.mode = check::Mode::padded;
  padded.lengths_q = {70, 150}, padded.lengths_k = {136, 33};
  check(padded);
  check::Case packed = biased(150, 136, {kOne, kOne, kFull});
  packed.mode = check::Mode::packed;
  packed.lengths_q = {150, 61}, packed.lengths_k = {20, 136};
  check(packed);
}

TEST_F(FakeDbias, EveryOption) {
  for (const Extent rows : {kFull, kOne}) {
    check::Case c = biased(90, 80, {kOne, kFull, rows});
    c.softcap = 5, c.alibi_rank = 1, c.causal = true, c.sink = true, c.gradients.dsink = true;
    c.mask = check::ScoreLayout{};
    c.mask_eighths = 4;
    c.dropout_p = 0.5, c.dropout_seed = 5;
    check(c);
  }
  check::Case negative = biased(90, 136, {kOne, kFull, kFull});
  negative.scale = -0.3, negative.causal = true;
  check(negative);
}

}  // namespace
}  // namespace cuflash::test
