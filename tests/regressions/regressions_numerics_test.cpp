// Numbers: values at the edge of their type, softcap, large logits, very small LSE.
#include <algorithm>
#include <cmath>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

void expect_finite(const Results& r) {
  for (const auto* values : {&r.o, &r.lse, &r.dq, &r.dk, &r.dv})
    for (double value : *values) ASSERT_TRUE(std::isfinite(value));
}

TEST(LargeValues, SingleKeyReturnsItsValue) {
  Inputs in = dense({.dim = 64, .dim_v = 64, .dtype = DType::bf16});
  for (Buffer* buffer : {&in.q, &in.k, &in.v}) fill(buffer->view(), 133120);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.o, 133120) && all_equal(r.dq, 0) && all_equal(r.dk, 0));
}

TEST(LargeValues, LargestHalfPrecisionNumbers) {
  Inputs in = dense({.len_q = 4, .len_k = 70, .dim = 64, .dim_v = 64, .dtype = DType::f16});
  for (Buffer* buffer : {&in.q, &in.k, &in.v}) fill(buffer->view(), 65504);
  in.attention.scale = 1e-9;
  const Results r = run(in);
  EXPECT_TRUE(all_equal(r.o, 65504));
  for (double lse : r.lse) EXPECT_TRUE(std::isfinite(lse));
}

// The sum over keys is far beyond 65504 before it is divided by the number of keys.
TEST(LargeValues, LongSumsOfHalfPrecisionValues) {
  Inputs in = dense({.len_q = 2, .len_k = 20000, .dim = 4, .dim_v = 4, .dtype = DType::f16});
  fill(in.v.view(), 60000);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.o, 60000));
}

TEST(LargeValues, LogitsAroundTenThousand) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.heads_q = 2, .heads_k = 2, .len_q = 40, .len_k = 150, .dim = 16, .dim_v = 16, .dtype = dtype});
    fill_normal(in.q.view(), 1, 60), fill_normal(in.k.view(), 2, 60);  // s is about N(0, 3600)
    expect_finite(expect_matches_oracle(in));
  }
}

TEST(LargeValues, OneHugeScoreLateInARow) {
  for (double huge : {1e4, -1e4}) {
    Inputs in = dense({.len_q = 10, .len_k = 300});
    fill(narrow(in.q.view(), 3, 0, 1), 1);
    fill(narrow(narrow(in.k.view(), 2, 290, 1), 3, 0, 1), huge);
    expect_finite(expect_matches_oracle(in));
  }
}

// A common offset of all scores of a row changes its LSE only: P must not be recomputed from exp(s) or exp(lse) alone.
TEST(LargeValues, LseFarBelowAndAboveTheRangeOfExp) {
  for (double offset : {-20000.0, -200.0, -88.5, 88.5, 200.0, 20000.0})
    for (DType dtype : {DType::f64, DType::f32}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " offset=" << offset);
      Inputs in = dense({.len_q = 20, .len_k = 90, .dtype = dtype});
      Buffer bias(contiguous<void>(nullptr, dtype, 1, 1, 1, 90));
      fill(bias.view(), offset);
      in.attention.bias = bias.view();
      const Results r = expect_matches_oracle(in);
      expect_finite(r);
      EXPECT_NEAR(r.lse[0], offset + std::log(90.0), 5);
    }
}

TEST(LargeValues, CommonOffsetOfKeys) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.len_q = 30, .len_k = 80, .dim = 16, .dim_v = 16, .dtype = dtype});
    std::vector<double> keys = in.k.read();
    for (double& key : keys) key += 30;
    in.k.write(keys);
    expect_matches_oracle(in);
  }
}

TEST(LargeValues, ConstantRows) {
  Inputs in = dense({.len_q = 65, .len_k = 129});
  fill(in.q.view(), 0.5), fill(in.k.view(), -2);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(std::all_of(r.lse.begin(), r.lse.end(), [&](double lse) { return lse == r.lse[0]; }));
}

// The exponential of a score is computed as a power of two: where scale times log2(e) is infinite in f32, a score of 0
// becomes NaN. What is accepted has to give a mean of the values.
TEST(LargeValues, LargestScaleOfScoresThatAreZero) {
  for (DType dtype : kFloatTypes)
    for (const double scale : {2.3586e38, -2.3586e38, 1e38})
      for (const double softcap : {0.0, 1.2e-38, 1e-20, 3e38})
        for (const int64_t len_q : {1, 40}) {  // decoded, and in panels
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << scale << " softcap=" << softcap);
          Inputs in = dense({.len_q = len_q, .len_k = 130, .dtype = dtype});
          fill(in.q.view(), 0);
          in.attention.scale = scale, in.attention.softcap = softcap, in.attention.causal = true;
          const Results r = run(in);
          EXPECT_TRUE(std::all_of(r.o.begin(), r.o.end(), [](double o) { return std::isfinite(o); }));
          EXPECT_NEAR(r.lse.back(), std::log(130.0), 1e-5);
          EXPECT_TRUE(all_equal(r.dk, 0));
        }
}

TEST(LargeValues, ScaleThatF32CannotMultiplyIsRefused) {
  for (DType dtype : kFloatTypes)
    for (const double scale : {2.36e38, 3e38, -3e38, 1e300, kInf, kNan}) {
      Inputs in = dense({.dtype = dtype});
      in.attention.scale = scale;
      expect_refused(in.attention, "scale");
    }
}

TEST(Softcap, ScoresFarBeyondTheCap) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.len_q = 30, .len_k = 130, .dim = 16, .dim_v = 16, .dtype = dtype});
    fill_normal(in.q.view(), 1, 50), fill_normal(in.k.view(), 2, 50);
    in.attention.softcap = 50;
    expect_finite(expect_matches_oracle(in));
  }
}

// A key that pads a tile has score 0, and softcap must not make it visible.
TEST(Softcap, LastTileOfOneKey) {
  for (int64_t len_k : {1, 17, 33, 65, 129, 193}) {
    Inputs in = dense({.len_q = 7, .len_k = len_k});
    fill(in.q.view(), 0);
    in.attention.softcap = 5;
    const Results r = expect_matches_oracle(in);
    EXPECT_NEAR(r.lse[0], std::log(static_cast<double>(len_k)), 1e-6);
  }
}

TEST(Softcap, CausalGradients) {
  Inputs in = dense({.batch = 2, .heads_q = 2, .heads_k = 1, .len_q = 200, .len_k = 200, .dim = 128, .dim_v = 128});
  in.attention.causal = true;
  in.attention.softcap = 10;
  fill_normal(in.q.view(), 5, 8);
  expect_matches_oracle(in);
}

TEST(Softcap, PackedGradients) {
  for (DType dtype : {DType::f32, DType::f16}) {
    Inputs in = packed({.heads_q = 4, .heads_k = 2, .len_q = 200, .len_k = 180, .dim = 32, .dim_v = 32, .dtype = dtype},
                       {0, 3, 3, 100, 200}, {0, 70, 71, 135, 180});
    in.attention.softcap = 3;
    in.attention.causal = true;
    expect_matches_oracle(in);
  }
}

// Mask before cap: a hidden score must stay hidden, not become -softcap.
TEST(Softcap, DoesNotUncoverHiddenKeys) {
  Inputs in = dense({.len_q = 70, .len_k = 70});
  fill(in.q.view(), 0);
  in.attention.softcap = 1;
  in.attention.window_left = 3;
  in.attention.causal = true;
  const Results r = expect_matches_oracle(in);
  EXPECT_NEAR(r.lse[69], std::log(4.0), 1e-6);
}

TEST(Lse, GradientOfLseEntersEveryGradient) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 50, .len_k = 70, .dtype = dtype});
    const std::vector<float> sink{0.1f, -1.0f, 2.0f, 0.0f};
    in.attention.sink = contiguous(sink.data(), 4);
    in.attention.causal = true;
    Buffer dlse(contiguous<void>(nullptr, state_type(dtype), 2, 4, 50));
    fill_normal(dlse.view(), 71);
    const Results with = expect_matches_oracle(in, {.dlse = dlse.view()});
    EXPECT_FALSE(same_bits(with.dq, run(in).dq));
  }
}

}  // namespace
}  // namespace cuflash::test
