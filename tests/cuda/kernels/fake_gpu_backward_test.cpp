// Gradients of the backward kernel that adds dQ on a fake Hopper GPU. The kernels themselves are emulated on the host:
// see tests/cuda/kernel_emulator. The CPU backend computes the outputs. Most problems have head size 128, whose kernel
// differs from those of other sizes only in its loader and in a separate warpgroup for dQ.

#include <cstring>

#include "backward_params.h"
#include "check/run/run.h"
#include "tests/cuda/fake_gpu/emulate.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"
#include "tests/cuda/fake_gpu/few_sms.h"
#include "tests/cuda/kernel_emulator/forward_kernel.h"
#include "tests/properties/property.h"

namespace cuflash::test {
namespace {

struct Running {
  uint64_t seed = 0;
  unsigned threads = 0;        // threads of the kernel's CTA
  bool dq = false;             // one for dQ alone was launched
  bool counts_tasks = true;    // the kernel has counted as many tasks of every head as the next kernel waits for
  int64_t prepared_heads = 0;  // heads that the prepare kernel prepares; 0: as planned
  std::string fault;
} running;

void compare_task_counts(const BackwardParams& p) {
  if (!p.dq_tasks) return;  // D = 64 has none
  const AttentionParams& a = p.attention;
  const unsigned tasks = static_cast<unsigned>((a.len_k + p.task_keys - 1) / p.task_keys * p.query_parts);
  for (int head = 0; head < a.batch * a.heads_q; ++head) {
    running.counts_tasks &= p.dq_tasks[head] == tasks;
    if (p.dq_tasks[head] > tasks) running.fault = "the kernel counts more tasks than there are";
  }
}

void run_kernel(const FakeLaunch& launch) {
  const auto runs = [&](const char* name) { return std::strstr(launch.program, name) != nullptr; };
  if (runs("sm90_forward<")) return emulate(static_cast<const Sm90ForwardParams*>(launch.params)->forward);
  if (runs("combine_splits<") || runs("sm90_tile_list<") || !running.fault.empty()) return;
  unsigned grid_x = launch.grid_x;
  if (running.prepared_heads != 0 && (runs("backward_prepare<") || runs("sm90_backward<"))) {
    auto& p = *static_cast<BackwardParams*>(const_cast<void*>(launch.params));
    p.prepared_heads = running.prepared_heads;
    if (runs("backward_prepare<")) {
      const int64_t ctas = running.prepared_heads * ((p.attention.len_q + 63) / 64);
      grid_x = static_cast<unsigned>(ctas);
      p.zero_bytes_per_cta = (p.zero_bytes / 16 + ctas - 1) / ctas * 16;
    }
  }
  const bool adds_dq = runs("sm90_backward<") && launch.threads == 512;
  if (runs("sm90_backward<")) running.threads = launch.threads;
  running.dq |= runs("sm90_dq<");
  running.fault =
      kernel_emulator::run_forward_kernel(launch.program, launch.params, {grid_x, launch.grid_y, launch.grid_z},
                                          static_cast<int>(launch.threads), launch.shared_bytes, ++running.seed);
  if (adds_dq && running.fault.empty())
    compare_task_counts(static_cast<const Sm90BackwardParams*>(launch.params)->backward);
}

class FakeBackward : public ::testing::Test {
 protected:
  FakeBackward() { loaded_fake_gpu().on_launch = run_kernel; }
  ~FakeBackward() override { loaded_fake_gpu().on_launch = nullptr; }

  // dq: a separate kernel computes dQ.
  static void check(const check::Case& c, bool dq = false, int64_t prepared_heads = 0, unsigned threads = 512) {
    running = {}, running.prepared_heads = prepared_heads;
    const std::string fault = check::run_case(c);
    EXPECT_EQ(running.fault, "") << check::describe(c);
    EXPECT_EQ(fault, "") << check::describe(c);
    EXPECT_TRUE(running.threads == threads && running.dq == dq) << check::describe(c);
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

// Eight heads that share keys are too many for a separate kernel for dQ. Tasks are parts of a key tile's heads and
// queries, whose sums are added up.
TEST_F(FakeBackward, HeadsOfAGroupEqualTheOracle) {
  check(of_head_size_128(1, 8, 150, 200));
  EXPECT_TRUE(running.counts_tasks);
  check::Case window = of_head_size_128(1, 8, 150, 300);
  window.window_left = 130, window.dlse_given = true;
  check(window);
}

// More tiles of keys than CTAs: some have a second task, whose first loads overlap with the end of the first.
TEST_F(FakeBackward, SecondTasksEqualTheOracle) {
  check(of_head_size_128(45, 2, 40, 270));
  EXPECT_TRUE(running.counts_tasks);
  check::Case padded = of_head_size_128(67, 1, 70, 140);
  padded.mode = check::Mode::padded;
  for (int32_t b = 0; b < 67; ++b) padded.lengths_q.push_back(b * 7 % 71), padded.lengths_k.push_back(b * 5 % 141);
  check(padded);
}

// Plans leave heads to the main kernel if there are many heads with many keys, which would take long here. So these
// problems are small and force it.
TEST_F(FakeBackward, HeadsThatTheMainKernelPrepares) {
  check::Case c = of_head_size_128(2, 8, 150, 200);  // the last query tile of a head is incomplete
  check(c, false, 1);
  c.window_left = 60, c.dim_v = 112, c.live_nan = true;
  check(c, false, 9);
  check::Case more_queries = of_head_size_128(1, 2, 600, 520);  // the first queries see no key
  more_queries.causal = true;
  check(more_queries, false, 1);
}

// Keys that fit one key tile: the kernel stores dQ, and no other one follows it. There are as many warpgroups as keys
// need. With 67 heads some CTAs have several tasks, which differ in their head alone.
TEST_F(FakeBackward, SequencesOfOneKeyTileEqualTheOracle) {
  const FewSms few;
  const auto short_keys = [](int64_t batch, int64_t heads, int64_t len_q, int64_t len_k, int64_t dim = 64) {
    check::Case c = of_head_size_128(batch, heads, len_q, len_k);
    c.dim = c.dim_v = dim;
    return c;
  };
  check(short_keys(1, 8, 150, 60), false, 0, 256);
  check(short_keys(1, 8, 200, 77), false, 0, 384);
  check(short_keys(1, 8, 140, 180), false, 0, 512);
  check::Case windows = short_keys(67, 2, 49, 49, 32);
  windows.dlse_given = true, windows.live_nan = true;
  check(windows, false, 0, 256);
  check::Case causal = short_keys(67, 2, 33, 64);
  causal.causal = causal.live_nan = true, causal.sink = true;
  check(causal, false, 0, 256);
  check::Case sliding = short_keys(1, 8, 140, 180);
  sliding.window_left = 30, sliding.window_right = 2, sliding.live_nan = true;
  check(sliding, false, 0, 512);
  check::Case narrow = short_keys(67, 2, 5, 1, 24);
  narrow.dim_v = 8;
  check(narrow, false, 0, 256);
}

// Many heads of short sequences: a CTA takes all key tiles of a head, keeps the sums of dQ to itself and stores dQ.
TEST_F(FakeBackward, KeyTilesOfOneCtaEqualTheOracle) {
  const FewSms few;
  const auto many_heads = [](int64_t len_q, int64_t len_k, int64_t dim = 64) {
    check::Case c = of_head_size_128(34, 2, len_q, len_k);
    c.heads_k = 2, c.dim = c.dim_v = dim;
    return c;
  };
  check::Case group = many_heads(5, 200);
  group.heads_q = 4, group.live_nan = group.deterministic = true;
  check(group, false, 0, 384);
  check::Case window =
      many_heads(100, 200, 32);  // some query tiles begin after the first key tile, some end before the last
  window.window_left = 20, window.window_right = 10, window.dlse_given = true;
  check(window, false, 0, 384);
  check::Case unseen = many_heads(5, 200);  // no query sees the first key tile
  unseen.causal = true, unseen.window_left = 30, unseen.sink = true;
  check(unseen, false, 0, 384);
  check::Case top_left = many_heads(65, 260);  // or the last one
  top_left.causal = true, top_left.alignment = Alignment::top_left;
  check(top_left, false, 0, 512);
  check::Case wide = many_heads(65, 150, 128);
  wide.causal = true, wide.alignment = Alignment::top_left, wide.dim_v = 120;
  check(wide, false, 0, 512);
  check::Case one_tile = many_heads(5, 20, 112);
  one_tile.live_nan = true;
  check(one_tile, false, 0, 512);
}

TEST_F(FakeBackward, OptionsOfOneKeyTileEqualTheOracle) {
  check::Case bias = of_head_size_128(67, 2, 64, 64);
  bias.dim = bias.dim_v = 32, bias.bias = check::ScoreLayout{}, bias.bias_dtype = DType::bf16;
  check(bias, false, 0, 256);
  check::Case dropout = of_head_size_128(1, 8, 150, 60);
  dropout.dim = dropout.dim_v = 64, dropout.dropout_p = 0.3, dropout.dropout_seed = 5;
  check(dropout, false, 0, 256);
  check::Case softcap = of_head_size_128(1, 8, 150, 100);
  softcap.dim = softcap.dim_v = 64, softcap.softcap = 4, softcap.live_nan = true, softcap.window_left = 100;
  check(softcap, false, 0, 384);
}

// The query tiles that a mask tensor shows to a key tile are neither all nor the first ones.
TEST_F(FakeBackward, QueryTilesThatAMaskShowsEqualTheOracle) {
  for (const check::MaskPattern pattern : {check::MaskPattern::documents, check::MaskPattern::blocks}) {
    check::Case c = of_head_size_128(1, 8, 300, 400);
    c.dim = c.dim_v = 64;
    c.mask = check::ScoreLayout{}, c.mask_pattern = pattern, c.mask_eighths = 1;
    check(c);
  }
}

// A lane draws half of its decisions for each key, and its neighbour the others.
TEST_F(FakeBackward, DropoutEqualsTheOracle) {
  for (const double p : {0.3, 0.7}) {
    check::Case c = of_head_size_128(1, 8, 150, 200);
    c.dropout_p = p, c.dropout_seed = 5;
    check(c, false, 0, 384);
  }
}

// Scores within three eighths of the cap, some beyond it, and most of them; the window hides pairs in most tiles. Hidden
// keys that are not finite take their tiles out of the polynomial's range.
TEST_F(FakeBackward, SoftcapEqualsTheOracle) {
  for (const auto& [softcap, live_nan] : {std::pair{30.0, true}, {4.0, false}, {4.0, true}, {0.5, false}}) {
    check::Case c = of_head_size_128(1, 8, 150, 200);
    c.softcap = softcap, c.window_left = 60, c.live_nan = live_nan;
    check(c, false, 0, 384);
  }
}

// Nearly all scores are at the cap, where 1 - tanh^2 is about 1e-5. In f16 it waits for dP as a number that f16 could not
// hold with all digits; dP is large, so dS has them.
TEST_F(FakeBackward, SlopesNearTheCapKeepTheirDigitsInF16) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    check::Case c = of_head_size_128(67, 2, 1, 60);
    c.heads_k = 2, c.dim = c.dim_v = 64, c.data_seed = seed;
    c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = DType::f16;
    c.flavour = check::Flavour::common_offset, c.scale = 0.02, c.softcap = 1;
    c.dropout_p = 0.9, c.dropout_seed = 5;
    c.q.repeat_batch = c.q.repeat_heads = true;  // heads with larger slopes would hide the errors of small ones
    check(c, false, 0, 256);
  }
}

// An infinite key that only some queries see must not reach dQ of the others.
TEST_F(FakeBackward, HiddenKeysThatAreNotFinite) {
  check::Case c = of_head_size_128(1, 8, 150, 200);
  c.window_left = 60, c.live_nan = true;
  check(c);
}

// 0 * NaN is NaN: a scale of 0 does not hide a NaN in dQ and dK from the queries that see it, and from no others.
TEST_F(FakeBackward, AScaleOfZeroKeepsNan) {
  check::Case c = of_head_size_128(2, 2, 70, 100);
  c.dim = c.dim_v = 64, c.scale = 0, c.window_left = 30, c.live_nan = true;
  c.mode = check::Mode::padded, c.lengths_q = {70, 50}, c.lengths_k = {100, 40};
  check(c, true, 0, 384);
}

}  // namespace
}  // namespace cuflash::test
