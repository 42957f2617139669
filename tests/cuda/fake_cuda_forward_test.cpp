// Forward calls on fake GPUs that split keys, pack heads or list tiles, with the kernels themselves emulated on the host:
// see tests/cuda/kernel_emulator.

#include <cstring>

#include "check/run/run.h"
#include "tests/cuda/fake_gpu/fake_cuda.h"
#include "tests/cuda/kernel_emulator/forward_kernel.h"
#include "tests/properties/property.h"

namespace cuflash::test {
namespace {

struct Running {
  uint64_t seed = 0;
  int launches = 0;
  bool packed = false;  // a kernel with kPackHeads was launched
  std::string fault;
} running;

void run_forward_kernel(const FakeLaunch& launch) {
  ++running.launches;
  running.packed |= std::strstr(launch.program, ", 0, 5}") != nullptr;
  if (!running.fault.empty()) return;
  running.fault =
      kernel_emulator::run_forward_kernel(launch.program, launch.params, {launch.grid_x, launch.grid_y, launch.grid_z},
                                          static_cast<int>(launch.threads), launch.shared_bytes, ++running.seed);
}

class FakeForward : public ::testing::Test {
 protected:
  FakeForward() { loaded_fake_cuda().on_launch = run_forward_kernel; }
  ~FakeForward() override { loaded_fake_cuda().on_launch = nullptr; }

  // launches: of one call; random problems are computed twice. 0: any number.
  static void check(check::Case c, int launches, bool backward = false) {
    c.device = Device::cuda, c.dtype = c.o_dtype = c.bias_dtype = c.sink_dtype = DType::bf16;
    if (!backward) c.gradients = {};
    else c.dout_dtype = c.gradient_dtype = DType::bf16;
    running = {};
    const std::string fault = check::run_case(c);
    EXPECT_EQ(running.fault, "") << check::describe(c);
    EXPECT_EQ(fault, "") << check::describe(c);
    if (launches != 0) {
      EXPECT_EQ(running.launches, 2 * launches) << check::describe(c);
    }
  }
};

check::Case few_queries(int64_t heads_q, int64_t heads_k, int64_t len_q, int64_t len_k) {
  check::Case c;
  c.batch = 1, c.heads_q = heads_q, c.heads_k = heads_k, c.len_q = len_q, c.len_k = len_k, c.dim = c.dim_v = 64;
  c.garbage = true;
  return c;
}

TEST_F(FakeForward, SplitKeysEqualTheOracle) {
  for (const bool causal : {false, true}) {
    check::Case c = few_queries(1, 1, 70, 2000);
    c.causal = causal, c.sink = causal;
    check(c, 2);
  }
  check::Case window = few_queries(1, 1, 100, 2500);
  window.window_left = 1700, window.window_right = 3;
  check(window, 2);
  check::Case padded = few_queries(2, 2, 68, 2000);
  padded.batch = 2, padded.mode = check::Mode::padded, padded.lengths_q = {68, 3}, padded.lengths_k = {1950, 0};
  check(padded, 2);
  check::Case packed = few_queries(1, 1, 66, 2000);
  packed.batch = 3, packed.mode = check::Mode::packed, packed.give_max_seqlen = true;
  packed.lengths_q = {66, 0, 5}, packed.lengths_k = {2000, 9, 300};
  check(packed, 2);
}

TEST_F(FakeForward, PackedHeadsEqualTheOracle) {
  const auto check_packed = [](const check::Case& c) {
    check(c, 2);
    EXPECT_TRUE(running.packed) << check::describe(c);
  };
  for (const int64_t group : {16, 32})
    for (const bool causal : {false, true}) {
      check::Case c = few_queries(group, 1, 144 / group, 2000);
      c.causal = causal, c.sink = true;
      check_packed(c);
    }
  check::Case packed = few_queries(16, 1, 9, 2000);
  packed.batch = 2, packed.mode = check::Mode::packed, packed.give_max_seqlen = true;
  packed.lengths_q = {9, 5}, packed.lengths_k = {2000, 300}, packed.causal = true;
  check_packed(packed);
}

TEST_F(FakeForward, OptionsOfSplitKeysEqualTheOracle) {
  check::Case c = few_queries(2, 1, 70, 1500);
  c.softcap = 5, c.alibi_rank = 1, c.sink = true, c.causal = true;
  c.dropout_p = 0.3, c.dropout_seed = 77;
  check(c, 2);
  check::Case fixed_max = few_queries(1, 1, 70, 2000);
  fixed_max.softcap = 20, fixed_max.sink = true;
  check(fixed_max, 2);
  check::Case terms = few_queries(1, 1, 70, 1500);
  terms.bias = terms.mask = check::ScoreLayout{};
  terms.bias->offset = terms.mask->offset = 1;  // beside a 16-byte boundary, so that consumers load the bias
  check(terms, 4);
}

// Lists of visible tiles, full tiles beside others, tiles that one warpgroup alone sees, hidden values that are not
// finite, and statistics.
TEST_F(FakeForward, TilesThatAMaskShowsEqualTheOracle) {
  using check::MaskPattern;
  for (const MaskPattern pattern : {MaskPattern::documents, MaskPattern::blocks, MaskPattern::pairs})
    for (const uint32_t eighths : {1u, 7u, 8u, 0u})
      for (const bool causal : {false, true}) {
        check::Case c = few_queries(2, 1, 200, 700);
        c.mask = check::ScoreLayout{}, c.mask_pattern = pattern, c.mask_eighths = eighths, c.causal = causal;
        c.mask_summary = static_cast<check::Case::Summary>(eighths % 3), c.tile_stats = true;
        check(c, 0);
        if (pattern == MaskPattern::documents) break;
      }
}

// The same for gradients, which the main kernel computes with dQ or without it.
TEST_F(FakeForward, GradientsOfTilesThatAMaskShowsEqualTheOracle) {
  using check::MaskPattern;
  for (const bool deterministic : {true, false})
    for (const MaskPattern pattern : {MaskPattern::documents, MaskPattern::blocks}) {
      check::Case c = few_queries(2, 1, 200, 700);
      c.gradients = {.dq = true, .dk = true, .dv = true};
      c.mask = check::ScoreLayout{}, c.mask_pattern = pattern, c.mask_eighths = 1, c.deterministic = deterministic;
      c.causal = deterministic, c.tile_stats = true;
      check(c, 0, true);
    }
}

TEST_F(FakeForward, ListedTilesEqualTheOracle) {
  for (const check::Mode mode : {check::Mode::packed, check::Mode::padded}) {
    check::Case c = few_queries(8, 2, 9, 11);
    c.dim = c.dim_v = 96, c.batch = 34, c.mode = mode;
    c.give_max_seqlen = c.causal = mode == check::Mode::packed;
    for (int32_t b = 0; b < 34; ++b) c.lengths_q.push_back(b * 7 % 10), c.lengths_k.push_back(b * 5 % 12);
    check(c, 2);
  }
}

}  // namespace
}  // namespace cuflash::test
