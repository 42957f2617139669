// The decode path: few queries against many keys, with every option, on every instruction set.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tests/shared/support.h"
#include "tests/shared/tested_isas.h"

namespace cuflash::test {
namespace {

class Decode : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { cpu::force_isa(GetParam()); }
  void TearDown() override { cpu::force_isa(nullptr); }
};

// K and V with all heads of a key side by side.
Inputs interleaved(const Sizes& s) {
  return {bhsd<void>(nullptr, s.dtype, s.batch, s.heads_q, s.len_q, s.dim),
          bshd<void>(nullptr, s.dtype, s.batch, s.len_k, s.heads_k, s.dim),
          bshd<void>(nullptr, s.dtype, s.batch, s.len_k, s.heads_k, s.dim_v),
          bhsd<void>(nullptr, s.dtype, s.batch, s.heads_q, s.len_q, s.dim_v)};
}

// O and LSE of one call, widened.
struct Forward {
  std::vector<double> o, lse;
};
Forward forward(const Inputs& in, const Execution& execution = {}) {
  const ConstTensor& q = in.attention.q;
  Buffer o(in.dout.view());
  Buffer lse(
      contiguous<void>(nullptr, q.dtype == DType::f64 ? DType::f64 : DType::f32, q.shape[0], q.shape[1], q.shape[2]));
  flash_attention_forward(in.attention, {.o = o.view(), .lse = lse.view()}, execution);
  return {o.read(), lse.read()};
}

TEST_P(Decode, EveryNumberOfRowsTypeAndLayout) {
  for (const DType dtype : kFloatTypes)
    for (int64_t group = 1; group <= 9; ++group)
      for (const int64_t len_q : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " group " << group << " Sq " << len_q);
        Sizes sizes{.heads_q = 2 * group, .heads_k = 2, .len_q = len_q, .len_k = 70, .dim = 20, .dim_v = 37};
        sizes.dtype = dtype;
        Inputs in = dense(sizes), side_by_side = interleaved(sizes);
        in.attention.causal = side_by_side.attention.causal = true;
        expect_matches_oracle(in);
        expect_matches_oracle(side_by_side);
      }
}

TEST_P(Decode, EveryHeadSize) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int64_t dim = 1; dim <= 256; dim += dim < 40 ? 1 : 27) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " D " << dim);
      Sizes sizes{.heads_q = 5, .heads_k = 1, .len_q = 1, .len_k = 19, .dim = dim, .dim_v = 257 - dim};
      sizes.dtype = dtype;
      expect_matches_oracle(dense(sizes));
    }
}

// Head sizes around the largest that products of bf16 support.
TEST_P(Decode, LargeHeadSizes) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t dim : {257, 512, 575, 576, 577, 700}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " D " << dim);
      Sizes sizes{.heads_q = 9, .heads_k = 1, .len_q = 1, .len_k = 21, .dim = dim, .dim_v = 833 - dim};
      sizes.dtype = dtype;
      expect_matches_oracle(dense(sizes));
    }
}

TEST_P(Decode, LengthsAroundBlocksAndSplits) {
  for (const int64_t len_k : {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 511, 512, 513, 575, 577, 1000, 2049}) {
    SCOPED_TRACE(len_k);
    expect_matches_oracle(dense({.heads_q = 4, .heads_k = 2, .len_q = 2, .len_k = len_k, .dim = 16, .dim_v = 16}));
    expect_matches_oracle(
        interleaved({.heads_q = 4, .heads_k = 2, .len_q = 2, .len_k = len_k, .dim = 16, .dim_v = 16}));
  }
}

// There are so many heads that none is split, and one task goes from block to block. Blocks are shorter if there are
// more rows.
TEST_P(Decode, SeveralBlocksOfOneTask) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [rows, len_k] : {std::pair<int64_t, int64_t>{1, 2100}, {9, 1025}}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << rows << " rows, " << len_k << " keys");
      Sizes sizes{.heads_q = 32 * rows, .heads_k = 32, .len_q = 1, .len_k = len_k, .dim = 8, .dim_v = 8};
      sizes.dtype = dtype;
      expect_matches_oracle(dense(sizes));
    }
}

// All options at once.
Inputs with_every_option(Inputs in, const Sizes& sizes, std::vector<float>& slopes, std::vector<float>& bias,
                         std::vector<uint8_t>& mask, std::vector<float>& sink) {
  Attention& a = in.attention;
  const int64_t pairs = sizes.heads_q * sizes.len_q * sizes.len_k;
  slopes.assign(static_cast<size_t>(sizes.heads_q), 0.01f);
  sink.assign(static_cast<size_t>(sizes.heads_q), 0.5f);
  for (int64_t n = 0; n < pairs; ++n) {
    bias.push_back(static_cast<float>(std::sin(static_cast<double>(n))));
    mask.push_back(n % 7 != 0);
  }
  a.causal = true, a.window_left = sizes.len_k - 100, a.softcap = 10, a.scale = 0.4;
  a.alibi_slopes = contiguous(slopes.data(), sizes.heads_q);
  a.bias = contiguous(bias.data(), int64_t{1}, sizes.heads_q, sizes.len_q, sizes.len_k);
  a.mask = contiguous(mask.data(), DType::boolean, 1, sizes.heads_q, sizes.len_q, sizes.len_k);
  a.sink = contiguous(sink.data(), sizes.heads_q);
  a.dropout_p = 0.3, a.dropout_seed = 11;
  return in;
}

TEST_P(Decode, EveryOptionAtOnce) {
  // Several splits and heads side by side; several blocks of one task.
  const Sizes split{.heads_q = 8, .heads_k = 2, .len_q = 3, .len_k = 1100, .dim = 16, .dim_v = 24};
  const Sizes whole{.heads_q = 32, .heads_k = 32, .len_q = 2, .len_k = 1100, .dim = 8, .dim_v = 8};
  for (const bool is_split : {true, false}) {
    SCOPED_TRACE(is_split);
    std::vector<float> slopes, bias, sink;
    std::vector<uint8_t> mask;
    const Inputs in = is_split ? with_every_option(interleaved(split), split, slopes, bias, mask, sink)
                               : with_every_option(dense(whole), whole, slopes, bias, mask, sink);
    ASSERT_TRUE(same_bits(forward(in).o, forward(in, {.num_threads = 1}).o));
    expect_matches_oracle(in);
  }
}

TEST_P(Decode, AnyNumberOfThreadsGivesTheSameBits) {
  for (const bool side_by_side : {false, true}) {
    const Sizes sizes{.heads_q = 6, .heads_k = 3, .len_q = 2, .len_k = 3000, .dim = 64, .dim_v = 64};
    const Inputs in = side_by_side ? interleaved(sizes) : dense(sizes);
    const Forward one = forward(in, {.num_threads = 1});
    for (const int threads : {2, 3, 8, 64}) {
      const Forward many = forward(in, {.num_threads = threads});
      EXPECT_TRUE(same_bits(one.o, many.o) && same_bits(one.lse, many.lse)) << threads;
    }
  }
}

// Splits are chosen per sequence, so that a row has the same bits whatever else is in the batch.
TEST_P(Decode, TheRestOfTheBatchChangesNoBit) {
  const Sizes sizes{.batch = 3, .heads_q = 4, .heads_k = 2, .len_q = 2, .len_k = 2100, .dim = 24, .dim_v = 24};
  for (const bool side_by_side : {false, true}) {
    Inputs in = side_by_side ? interleaved(sizes) : dense(sizes);
    const std::vector<int32_t> used{2100, 700, 1500};
    in.attention.seqlens_k = contiguous(used.data(), 3);
    const Forward all = forward(in);
    const int64_t o_size = 4 * 2 * 24, lse_size = 4 * 2;
    for (int64_t b = 0; b < 3; ++b) {
      Attention one = in.attention;
      for (ConstTensor* t : {&one.q, &one.k, &one.v}) *t = narrow(*t, 0, b, 1);
      one.seqlens_k = {};
      for (ConstTensor* t : {&one.k, &one.v}) *t = narrow(*t, 2, 0, used[static_cast<size_t>(b)]);
      Buffer o(bhsd<void>(nullptr, DType::f32, 1, 4, 2, 24)), lse(contiguous<void>(nullptr, DType::f32, 1, 4, 2));
      flash_attention_forward(one, {.o = o.view(), .lse = lse.view()});
      EXPECT_TRUE(same_bits(o.read(), part(all.o, b * o_size, o_size))) << b;
      EXPECT_TRUE(same_bits(lse.read(), part(all.lse, b * lse_size, lse_size))) << b;
    }
  }
}

// Hidden values change no bit: NaN and Inf beyond lengths, outside of the window, and where the mask is false.
TEST_P(Decode, HiddenKeysAndValuesDoNotExist) {
  for (const DType dtype : kFloatTypes)
    for (const double hidden : {kNan, kInf, -kInf}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << hidden);
      Sizes sizes{.heads_q = 4, .heads_k = 2, .len_q = 2, .len_k = 700, .dim = 9, .dim_v = 21};
      sizes.dtype = dtype;
      Inputs in = interleaved(sizes);
      std::vector<uint8_t> mask(700, 1);
      in.attention.window_left = 600;
      in.attention.causal = true;
      in.attention.mask = contiguous(mask.data(), DType::boolean, 1, 1, 1, 700);
      for (const size_t j : {size_t{300}, size_t{333}, size_t{640}}) mask[j] = 0;
      const Forward clean = forward(in);
      for (const int64_t j : {int64_t{0}, int64_t{50}, int64_t{300}, int64_t{333}, int64_t{640}}) {
        fill(narrow(in.k.view(), 2, j, 1), hidden);
        fill(narrow(in.v.view(), 2, j, 1), hidden);
      }
      const Forward dirty = forward(in);
      EXPECT_TRUE(same_bits(clean.o, dirty.o));
      EXPECT_TRUE(same_bits(clean.lse, dirty.lse));
    }
}

// The last key is seen by the last query only: its NaN reaches that query and leaves the bits of the others unchanged.
TEST_P(Decode, AVisibleNanReachesTheQueriesThatSeeIt) {
  Inputs in = dense({.heads_q = 3, .heads_k = 1, .len_q = 2, .len_k = 100, .dim = 8, .dim_v = 8});
  in.attention.causal = true;
  const Forward clean = forward(in);
  fill(narrow(in.v.view(), 2, 99, 1), kNan);
  const Forward dirty = forward(in);
  for (int64_t h = 0; h < 3; ++h) {
    EXPECT_TRUE(same_bits(part(dirty.o, h * 16, 8), part(clean.o, h * 16, 8)));
    for (const double x : part(dirty.o, h * 16 + 8, 8)) EXPECT_TRUE(std::isnan(x));
  }
  EXPECT_TRUE(same_bits(clean.lse, dirty.lse));
}

// Neither an empty split nor a split of only NaN has a largest score; merging must not confuse them.
TEST_P(Decode, ANanQueryIsNotLostBehindHiddenSplits) {
  Inputs in = dense({.heads_q = 2, .heads_k = 1, .len_k = 2048, .dim = 8, .dim_v = 8});
  std::vector<uint8_t> mask(2048, 1);
  std::fill_n(mask.begin(), 700, uint8_t{0});
  in.attention.mask = contiguous(mask.data(), DType::boolean, 1, 1, 1, 2048);
  fill(narrow(in.q.view(), 1, 1, 1), kNan);
  const Forward r = forward(in);
  for (const double x : part(r.o, 0, 8)) EXPECT_TRUE(std::isfinite(x));
  for (const double x : part(r.o, 8, 8)) EXPECT_TRUE(std::isnan(x));
  EXPECT_TRUE(std::isnan(r.lse[1]));
}

// Weights may be rounded, but a result is a mean: of ones it is 1.
TEST_P(Decode, MeansAreNotRoundedWithTheirWeights) {
  Inputs in = dense({.heads_q = 4, .len_k = 5, .dim = 16, .dim_v = 16, .dtype = DType::bf16});
  fill(in.v.view(), 1);
  Buffer o(bhsd<void>(nullptr, DType::f32, 1, 4, 1, 16));
  flash_attention_forward(in.attention, {.o = o.view()});
  for (const double x : o.read()) EXPECT_NEAR(x, 1, 1e-6);
}

TEST_P(Decode, PaddedAndPackedSequences) {
  expect_matches_oracle(padded({.batch = 4, .heads_q = 4, .heads_k = 2, .len_q = 3, .len_k = 600, .dim = 8, .dim_v = 8},
                               {3, 0, 1, 2}, {600, 20, 0, 513}));
  expect_matches_oracle(packed({.heads_q = 4, .heads_k = 2, .len_q = 9, .len_k = 900, .dim = 8, .dim_v = 8},
                               {0, 2, 2, 3, 5}, {0, 600, 650, 650, 880}));
}

// The widest problem that this path takes and the next one agree with the oracle, and explain names the path.
TEST_P(Decode, TheBorderToPanels) {
  for (int64_t len_q = 1; len_q <= 40; ++len_q) {
    SCOPED_TRACE(len_q);
    Inputs in = dense({.heads_q = 2, .heads_k = 2, .len_q = len_q, .len_k = 90, .dim = 16, .dim_v = 16});
    in.attention.causal = true;
    expect_matches_oracle(in);
  }
}

TEST(DecodeExplain, NamesThePath) {
  const auto text = [](int64_t len_q) {
    Inputs in = dense({.heads_q = 8, .heads_k = 2, .len_q = len_q, .len_k = 4096, .dim = 16, .dim_v = 16});
    Buffer o(in.dout.view());
    return explain(in.attention, ForwardOutputs{.o = o.view()});
  };
  EXPECT_NE(text(1).find("4 rows share each K and V"), std::string::npos) << text(1);
  EXPECT_EQ(text(200).find("decode"), std::string::npos) << text(200);
}

INSTANTIATE_TEST_SUITE_P(Isa, Decode, testing::ValuesIn(tested_isas()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace cuflash::test
