// Forward calls on fake GPUs that split keys, pack heads or list tiles, with the kernels themselves emulated on the host:
// see tests/cuda/kernel_emulator.

#include <algorithm>
#include <cstring>

#include "check/run/run.h"
#include "params.h"
#include "tests/cuda/fake_gpu/fake_gpu.h"
#include "tests/cuda/fake_gpu/few_sms.h"
#include "tests/cuda/kernel_emulator/forward_kernel.h"
#include "tests/properties/property.h"
#include "tests/shared/gpu_memory.h"

namespace cuflash::test {
namespace {

struct Running {
  uint64_t seed = 0;
  int launches = 0;
  bool packed = false;    // a kernel with kPackHeads was launched
  unsigned ctas = 0;      // CTAs of the forward kernel, each with several tiles; 0: as planned
  bool is_short = false;  // shared memory has room for several CTAs per SM
  std::string fault;
} running;

void run_forward_kernel(const FakeLaunch& launch) {
  ++running.launches;
  running.packed |= std::strstr(launch.program, ", 0, 5}") != nullptr;
  if (!running.fault.empty()) return;
  unsigned grid_x = launch.grid_x;
  if (std::strstr(launch.program, "sm90_forward<") != nullptr) {
    running.is_short = launch.shared_bytes <= (228u << 10) / 2;
    if (running.ctas != 0) {
      TileOrder& order = static_cast<Sm90ForwardParams*>(const_cast<void*>(launch.params))->tile_order;
      grid_x = running.ctas;
      order.heads_per_group = order.heads, order.groups = 1;
      order.rounds = order.group_rounds = (order.heads * order.q_tiles + grid_x - 1) / grid_x;
    }
  }
  running.fault =
      kernel_emulator::run_forward_kernel(launch.program, launch.params, {grid_x, launch.grid_y, launch.grid_z},
                                          static_cast<int>(launch.threads), launch.shared_bytes, ++running.seed);
}

class FakeForward : public ::testing::Test {
 protected:
  FakeForward() { loaded_fake_gpu().on_launch = run_forward_kernel; }
  ~FakeForward() override { loaded_fake_gpu().on_launch = nullptr; }

  // launches: of one call; random problems are computed twice. 0: any number.
  static void check(check::Case c, int launches, DType dtype = DType::bf16, bool backward = false, unsigned ctas = 0) {
    c.device = Device::cuda, c.dtype = c.o_dtype = c.bias_dtype = c.sink_dtype = dtype;
    if (!backward) c.gradients = {};
    else c.dout_dtype = c.gradient_dtype = dtype;
    running = {}, running.ctas = ctas;
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
  check(few_queries(1, 1, 450, 1400), 2);  // more CTAs read the same keys than `few`
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

// Six splits: the reduction has two rows at once.
TEST_F(FakeForward, FewSplitsEqualTheOracle) {
  check::Case c = few_queries(18, 18, 67, 2000);
  c.sink = true;
  check(c, 2);
}

// Key tiles are visited from the last one on, so that the peaks among the first keys are the late ones.
TEST_F(FakeForward, RowsThatOutgrowTheirFirstTileEqualTheOracle) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const uint64_t seed : {1, 2, 3}) {
      check::Case peaks = few_queries(1, 1, 70, 400);
      peaks.flavour = check::Flavour::late_peak, peaks.data_seed = seed;
      check(peaks, 1, dtype);
    }
    check::Case large = few_queries(1, 1, 70, 400);
    large.flavour = check::Flavour::large_logits, large.live_nan = true, large.sink = true;
    check(large, 1, dtype);
  }
}

// The first tile that a warpgroup visits has keys 320 to 337, none of which its first queries see.
TEST_F(FakeForward, RowsThatSeeNothingOfTheirFirstTileEqualTheOracle) {
  for (const check::Flavour flavour : {check::Flavour::normal, check::Flavour::large_logits}) {
    check::Case c = few_queries(1, 1, 70, 337);
    c.causal = true, c.flavour = flavour;
    check(c, 1);
  }
}

// In tiles of 128 x 128 every other warpgroup sees half of its first key tile. With 150 queries the first tile lacks
// one warpgroup; with more keys, or a window, the edges are elsewhere.
TEST_F(FakeForward, HalvesOfTheFirstTileEqualTheOracle) {
  for (const int64_t len_k : {150, 128, 203, 240}) {
    check::Case c = few_queries(1, 1, 150, len_k);
    c.dim = c.dim_v = 128, c.causal = true, c.sink = len_k == 203;
    if (len_k == 240) c.window_left = 70;
    check(c, 1);
  }
}

// Slopes of the oracle's problems are steep enough for keys far from the diagonal, which are visited first without a
// causal mask, to lie far below the others.
TEST_F(FakeForward, OptionsOfRowsThatOutgrowTheirFirstTileEqualTheOracle) {
  for (const bool causal : {false, true})
    for (const check::Flavour flavour :
         {check::Flavour::normal, check::Flavour::late_peak, check::Flavour::large_logits}) {
      check::Case c = few_queries(1, 1, 70, 400);
      c.alibi_rank = 1, c.causal = causal, c.flavour = flavour, c.live_nan = causal;
      check(c, 1);
      c.dropout_p = causal ? 0.3 : 0.7, c.dropout_seed = 5;
      check(c, 1);
      check::Case capped = few_queries(1, 1, 70, 400);
      capped.softcap = 30, capped.causal = causal, capped.flavour = flavour, capped.sink = causal;
      check(capped, 1, DType::f16);
    }
}

// Small scores take the polynomial of softcap, those of a large scale or a small cap its exponential.
TEST_F(FakeForward, SoftcapWithAFixedReferenceEqualsTheOracle) {
  for (const double softcap : {0.5, 3.0, 20.0, 50.0})
    for (const bool causal : {false, true})
      for (const check::Flavour flavour : {check::Flavour::normal, check::Flavour::large_logits}) {
        check::Case c = few_queries(1, 1, 70, 400);
        c.softcap = softcap, c.causal = causal, c.flavour = flavour, c.sink = causal, c.live_nan = softcap == 3;
        check(c, 1);
      }
  check::Case tiny = few_queries(1, 1, 70, 400);  // no polynomial
  tiny.softcap = 20, tiny.scale = 1e-12;
  check(tiny, 1);
}

// Enlarges all rows, and one of them far more.
struct OneRowCase {
  const char* name;
  double softcap;  // 0, or one that bounds scores to those of a fixed reference
  bool alibi, causal;
  int growth;  // of all rows, a power of two: not enough for any of them to outgrow its first tile
};
class FakeForwardOfOneRow : public FakeForward, public ::testing::WithParamInterface<OneRowCase> {};
TEST_P(FakeForwardOfOneRow, DoesNotDependOnOthersThatAreLarge) {
  constexpr int64_t kQueries = 70, kDim = 64;
  constexpr size_t kHostile = 6;
  const Stream stream;
  Inputs inputs = dense({.len_q = kQueries, .len_k = 400, .dim = kDim, .dim_v = kDim, .dtype = DType::bf16});
  inputs.attention.softcap = GetParam().softcap, inputs.attention.causal = GetParam().causal;
  DeviceProblem p(inputs, stream);
  const float slope = 0.01f;
  const DeviceTensor slopes = copy_of(contiguous(&slope, 1));
  if (GetParam().alibi) p.attention.alibi_slopes = slopes.view;
  p.take_workspace();
  const auto run = [&] {
    running = {};
    p.forward();
    stream.wait();
    EXPECT_EQ(running.fault, "");
    EXPECT_EQ(running.launches, 1);
    return std::pair{p.o.memory.read(), p.lse.memory.read()};
  };
  constexpr size_t kRowBytes = 2 * kDim;
  const auto multiply_q = [&](size_t begin, size_t end, int exponent) {
    std::vector<std::byte> q = p.q.memory.read();
    for (size_t n = begin; n < end; n += 2) {
      uint16_t element = 0;
      std::memcpy(&element, &q[n], 2);
      element = static_cast<uint16_t>(element + (exponent << 7));
      std::memcpy(&q[n], &element, 2);
    }
    p.q.memory.write(q.data(), q.size());
  };
  multiply_q(0, kQueries * kRowBytes, GetParam().growth);
  const auto [o_before, lse_before] = run();
  multiply_q(kHostile * kRowBytes, (kHostile + 1) * kRowBytes, 7);
  const auto [o_after, lse_after] = run();
  const auto equal = [](const auto& a, const auto& b, size_t row, size_t bytes) {
    return std::memcmp(&a[row * bytes], &b[row * bytes], bytes) == 0;
  };
  for (size_t row = 0; row < kQueries; ++row) {
    EXPECT_EQ(equal(o_before, o_after, row, kRowBytes), row != kHostile) << row;
    EXPECT_EQ(equal(lse_before, lse_after, row, sizeof(float)), row != kHostile) << row;
  }
}
INSTANTIATE_TEST_SUITE_P(Options, FakeForwardOfOneRow,
                         ::testing::Values(OneRowCase{"None", 0, false, false, 4},
                                           OneRowCase{"Softcap", 30, false, false, 0},
                                           OneRowCase{"Alibi", 0, true, false, 0},
                                           OneRowCase{"AlibiOfTheFirstMaximum", 0, true, true, 2}),
                         [](const auto& c) { return std::string(c.param.name); });

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
  terms.bias->offset = terms.mask->offset = 1;  // not on a 16-byte boundary, so that consumers load the bias
  check(terms, 4);
}

// Lists of visible tiles, full tiles next to others, tiles that only one warpgroup sees, hidden values that are not
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

// At head size 128 scores stay in registers until the sum of probabilities is checked (kFirstMax), with and without
// split keys. Tiles have two warpgroups, or three if there would be more tiles of two than SMs.
TEST_F(FakeForward, TilesThatAMaskShowsOfHeadSize128EqualTheOracle) {
  using check::MaskPattern;
  for (const MaskPattern pattern : {MaskPattern::documents, MaskPattern::blocks})
    for (const int64_t queries : {100, 200})
      for (const int64_t keys : {150, 700}) {
        check::Case c = few_queries(1, 1, queries, keys);
        c.dim = c.dim_v = 128, c.mask = check::ScoreLayout{}, c.mask_pattern = pattern, c.mask_eighths = 2;
        c.causal = pattern == MaskPattern::documents, c.tile_stats = true;
        check(c, 0);
      }
  const FewSms few;
  check::Case many = few_queries(9, 1, 190, 70);
  many.dim = many.dim_v = 128, many.mask = check::ScoreLayout{}, many.mask_pattern = MaskPattern::documents;
  many.mask_eighths = 2;
  check(many, 3);
}

// Two tiles that begin at boundaries of the mask, taken from a list: 64 queries, and the next 128. The first is
// computed after its neighbour, because it sees fewer key tiles or, if it sees as many, because it is listed later.
TEST_F(FakeForward, TilesThatAMaskSuggestsEqualTheOracle) {
  const FewSms few;
  for (const int64_t queries : {400, 500}) {  // 500: tiles of fewer groups before others
    check::Case c = few_queries(11, 1, queries, 150);
    c.mask = check::ScoreLayout{}, c.mask->extents[1] = check::Extent::one;  // all heads share it
    c.mask_pattern = check::MaskPattern::documents, c.mask_eighths = 2;
    c.tile_stats = false;  // they count regular tiles, without a mask's
    check(c, 4);
  }
}

// Gradients of such tiles, which the main kernel computes with or without dQ.
TEST_F(FakeForward, GradientsOfTilesThatAMaskShowsEqualTheOracle) {
  using check::MaskPattern;
  for (const bool deterministic : {true, false})
    for (const MaskPattern pattern : {MaskPattern::documents, MaskPattern::blocks}) {
      check::Case c = few_queries(2, 1, 200, 700);
      c.gradients = {.dq = true, .dk = true, .dv = true};
      c.mask = check::ScoreLayout{}, c.mask_pattern = pattern, c.mask_eighths = 1, c.deterministic = deterministic;
      c.causal = deterministic, c.tile_stats = true;
      check(c, 0, DType::bf16, true);
    }
}

// One sequence: tiles of one consumer warpgroup.
TEST_F(FakeForward, TilesOfOneWarpgroupEqualTheOracle) {
  for (const bool causal : {false, true}) {
    check::Case c = few_queries(1, 1, 170, 190);
    c.causal = causal, c.sink = causal;
    check(c, 1);
  }
}

// Many sequences: tiles of 64 queries, several of which an SM computes at the same time. Each CTA has many of them, so
// that loads of one tile overlap with the products of others.
class FakeForwardOfShortSequences : public FakeForward {
 protected:
  static check::Case sequences(int64_t len_q, int64_t len_k, int64_t dim = 32) {
    check::Case c;
    const int64_t tiles = (len_q + 63) / 64, enough = 2 * FewSms::kSms;
    c.batch = (enough + 4 * tiles - 1) / (4 * tiles), c.heads_q = 4, c.heads_k = 2, c.len_q = len_q, c.len_k = len_k;
    c.dim = c.dim_v = dim;
    c.garbage = true;
    return c;
  }
  static void check_short(const check::Case& c, int launches = 1, DType dtype = DType::bf16) {
    check(c, launches, dtype, false, c.mode == check::Mode::padded || c.mask ? 0 : 3);
    EXPECT_TRUE(running.is_short) << check::describe(c);
  }

 private:
  FewSms few_;
};

TEST_F(FakeForwardOfShortSequences, OfOneKeyTileEqualTheOracle) {
  for (const int64_t length : {1, 49, 64}) {
    check::Case c = sequences(length, length);
    c.causal = c.live_nan = length == 49, c.sink = length == 64;
    check_short(c);
  }
  check::Case window = sequences(64, 60);
  window.window_left = 5, window.window_right = 2, window.live_nan = true;
  check_short(window);
  check_short(sequences(130, 7));
  check::Case narrow = sequences(49, 49);
  narrow.dim = 24, narrow.dim_v = 16;
  check_short(narrow);
  check_short(sequences(33, 60, 128));
}

TEST_F(FakeForwardOfShortSequences, Of65To80KeysEqualTheOracle) {
  for (const int64_t keys : {65, 77}) {
    check::Case c = sequences(70, keys, 64);
    c.causal = keys == 77;
    check_short(c);
  }
}

// Two warpgroups share the keys, of which each multiplies 64 at a time.
TEST_F(FakeForwardOfShortSequences, OfTwoWarpgroupsEqualTheOracle) {
  const auto enough = [](int64_t len_q, int64_t len_k) {
    check::Case c = sequences(len_q, len_k, 64);
    c.batch *= 2;
    return c;
  };
  check::Case c = enough(128, 128);
  c.causal = c.live_nan = true;
  check_short(c);
  check::Case window = enough(150, 100);
  window.window_left = 20, window.window_right = 30, window.live_nan = true;
  check_short(window);
  check::Case padded = enough(120, 128);
  padded.mode = check::Mode::padded;
  for (int32_t b = 0; b < padded.batch; ++b)
    padded.lengths_q.push_back(b * 17 % 121), padded.lengths_k.push_back(b * 23 % 129);
  check_short(padded, 2);
}

TEST_F(FakeForwardOfShortSequences, OfSeveralKeyTilesEqualTheOracle) {
  check::Case c = sequences(128, 128, 64);
  c.causal = c.live_nan = true;
  check_short(c);
  check::Case window = sequences(100, 200, 64);
  window.window_left = 90, window.window_right = 0, window.flavour = check::Flavour::late_peak;
  check_short(window);
}

TEST_F(FakeForwardOfShortSequences, WithOptionsEqualTheOracle) {
  check::Case bias = sequences(64, 64);
  bias.bias = check::ScoreLayout{};
  check_short(bias);
  bias.len_q = bias.len_k = 49;  // rows of the bias do not start on 16-byte boundaries
  check_short(bias);
  check::Case mask = sequences(49, 49);
  mask.mask = check::ScoreLayout{}, mask.mask_pattern = check::MaskPattern::blocks, mask.mask_eighths = 2;
  check_short(mask, 4);
  check::Case dropout = sequences(49, 49);
  dropout.dropout_p = 0.3, dropout.dropout_seed = 5;
  check_short(dropout);
  check::Case softcap = sequences(49, 49);
  softcap.softcap = 20, softcap.causal = true;
  check_short(softcap);
}

TEST_F(FakeForwardOfShortSequences, OfDifferentLengthsEqualTheOracle) {
  check::Case c = sequences(49, 64);
  c.mode = check::Mode::padded;
  for (int32_t b = 0; b < c.batch; ++b) c.lengths_q.push_back(b * 7 % 50), c.lengths_k.push_back(b * 5 % 65);
  check_short(c, 2, DType::f16);
}

TEST_F(FakeForward, ListedTilesEqualTheOracle) {
  const FewSms few;
  for (const check::Mode mode : {check::Mode::packed, check::Mode::padded}) {
    check::Case c = few_queries(8, 2, 9, 11);
    c.dim = 192, c.dim_v = 96, c.batch = 6, c.mode = mode;  // tiles whose output TMA does not store
    c.give_max_seqlen = c.causal = mode == check::Mode::packed;
    for (int32_t b = 0; b < 6; ++b) c.lengths_q.push_back(b * 7 % 10), c.lengths_k.push_back(b * 5 % 12);
    check(c, 2);
  }
}

}  // namespace
}  // namespace cuflash::test
