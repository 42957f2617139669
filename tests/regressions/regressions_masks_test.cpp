// Masks: rows without visible keys, infinite biases, and hidden values.
#include <cmath>

#include "tests/shared/support.h"

namespace cuflash::test {
namespace {

using Mask = std::vector<uint8_t>;

ConstTensor as_mask(const Mask& mask, int64_t batch, int64_t heads, int64_t len_q, int64_t len_k) {
  return contiguous(mask.data(), DType::boolean, batch, heads, len_q, len_k);
}

Mask random_mask(size_t count, uint64_t seed) {
  std::mt19937_64 bits(seed);
  Mask mask(count);
  for (auto& visible : mask) visible = bits() % 3 != 0;
  return mask;
}

// The result of a row without a visible key, forward and backward.
void expect_row_sees_nothing(const Results& r, int64_t row, int64_t dim, int64_t dim_v) {
  EXPECT_TRUE(all_equal(part(r.o, row * dim_v, dim_v), 0)) << "o of row " << row;
  EXPECT_EQ(r.lse[static_cast<size_t>(row)], -kInf) << "lse of row " << row;
  EXPECT_TRUE(all_equal(part(r.dq, row * dim, dim), 0)) << "dq of row " << row;
}

TEST(MaskTensor, RowsWithoutAVisibleKeyGiveZeroAndMinusInfinity) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.len_q = 8, .len_k = 8, .dtype = dtype});
    Mask mask = random_mask(64, 5);
    for (int64_t row : {0, 3, 7}) std::fill_n(mask.begin() + row * 8, 8, uint8_t{0});
    in.attention.mask = as_mask(mask, 1, 1, 8, 8);
    const Results r = expect_matches_oracle(in);
    for (int64_t row : {0, 3, 7}) expect_row_sees_nothing(r, row, 8, 8);
  }
}

TEST(MaskTensor, AllFalseGivesZeroOutputsAndGradients) {
  Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 70, .len_k = 130, .dim = 16, .dim_v = 24});
  const Mask nothing(130, 0);
  in.attention.mask = as_mask(nothing, 1, 1, 1, 130);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(r.o, 0) && all_equal(r.dq, 0) && all_equal(r.dk, 0) && all_equal(r.dv, 0));
  EXPECT_TRUE(all_equal(r.lse, -kInf));
}

TEST(MaskTensor, RowsWithoutAVisibleKeyHaveTheSinkAsLse) {
  Inputs in = dense({.heads_q = 2, .heads_k = 2, .len_q = 9, .len_k = 65});
  const std::vector<float> sink{1.5f, -200.0f};
  const Mask nothing(65, 0);
  in.attention.mask = as_mask(nothing, 1, 1, 1, 65);
  in.attention.sink = contiguous(sink.data(), 2);
  const Results r = expect_matches_oracle(in);
  EXPECT_TRUE(all_equal(part(r.lse, 0, 9), 1.5) && all_equal(part(r.lse, 9, 9), -200));
  EXPECT_TRUE(all_equal(r.o, 0) && all_equal(r.dsink, 0));
}

// A whole tile, the first tiles, or only the last key of a row are visible.
TEST(MaskTensor, VisibleKeysAnywhereInARow) {
  const int64_t len_k = 300;
  Inputs in = dense({.heads_q = 2, .heads_k = 1, .len_q = 6, .len_k = len_k, .dim = 16, .dim_v = 16});
  Mask mask(static_cast<size_t>(6 * len_k), 0);
  const auto show = [&](int64_t row, int64_t begin, int64_t end) {
    std::fill(mask.begin() + row * len_k + begin, mask.begin() + row * len_k + end, uint8_t{1});
  };
  show(0, 0, 1), show(1, len_k - 1, len_k), show(2, 128, 256), show(3, 63, 65), show(5, 0, len_k);
  in.attention.mask = as_mask(mask, 1, 1, 6, len_k);
  expect_matches_oracle(in);
}

// Nothing is computed of the last tiles of keys, where rows are finished otherwise.
TEST(MaskTensor, LastKeysHidden) {
  const int64_t len_q = 90, len_k = 1100;
  Inputs in = dense({.len_q = len_q, .len_k = len_k});
  Mask mask(static_cast<size_t>(len_q * len_k), 0);
  for (int64_t i = 0; i < len_q; ++i) std::fill_n(mask.begin() + i * len_k, i < 10 ? 100 : 30, uint8_t{1});
  in.attention.mask = as_mask(mask, 1, 1, len_q, len_k);
  expect_matches_oracle(in);
  in.attention.mask = as_mask(mask, 1, 1, 1, len_k);
  expect_matches_oracle(in);
}

TEST(MaskTensor, AnyNonZeroByteIsTrue) {
  Inputs in = dense({.len_q = 5, .len_k = 40});
  Mask ones = random_mask(200, 11), bytes = ones;
  for (size_t n = 0; n < bytes.size(); ++n) bytes[n] = static_cast<uint8_t>(ones[n] ? 1 + n % 255 : 0);
  in.attention.mask = as_mask(ones, 1, 1, 5, 40);
  const Results expected = expect_matches_oracle(in);
  in.attention.mask = as_mask(bytes, 1, 1, 5, 40);
  EXPECT_TRUE(same_bits(run(in), expected));
}

TEST(Bias, RowOfLowestFiniteValuesIsAUniformSoftmax) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.len_q = 3, .len_k = 4, .dim_v = 4, .dtype = dtype});
    Buffer bias(contiguous<void>(nullptr, DType::f32, 1, 1, 3, 4));
    fill(bias.view(), 0);
    fill(narrow(bias.view(), 2, 1, 1), std::numeric_limits<float>::lowest());
    in.attention.bias = bias.view();
    fill(in.v.view(), 0);
    for (int64_t j = 0; j < 4; ++j) fill(narrow(narrow(in.v.view(), 2, j, 1), 3, j, 1), 1);  // o is p
    const Results r = expect_matches_oracle(in);
    EXPECT_TRUE(all_equal(part(r.o, 4, 4), 0.25));
  }
}

TEST(Bias, RowOfMinusInfinitySeesNothing) {
  for (DType dtype : kFloatTypes) {
    for (int64_t len_k : {4, 200}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " Sk=" << len_k);
      Inputs in = dense({.len_q = 3, .len_k = len_k, .dtype = dtype});
      Buffer bias(contiguous<void>(nullptr, dtype, 1, 1, 3, len_k));
      fill_normal(bias.view(), 8);
      fill(narrow(bias.view(), 2, 1, 1), -kInf);
      in.attention.bias = bias.view();
      const Results r = expect_matches_oracle(in);
      expect_row_sees_nothing(r, 1, 8, 8);
      EXPECT_TRUE(all_equal(part(r.dbias, len_k, len_k), 0));
    }
  }
}

// The additive form of a mask, as frameworks build it, also when whole tiles of a row are -inf before the first key.
TEST(Bias, MinusInfinityHidesAKeyAsAMaskDoes) {
  const int64_t len_q = 40, len_k = 200;
  Inputs in = dense({.heads_q = 2, .heads_k = 2, .len_q = len_q, .len_k = len_k, .dim = 16, .dim_v = 16});
  Mask mask = random_mask(static_cast<size_t>(len_q * len_k), 21);
  for (int64_t i = 0; i < len_q; ++i) std::fill_n(mask.begin() + i * len_k, 130, uint8_t{0});
  std::vector<float> bias(mask.size());
  for (size_t n = 0; n < mask.size(); ++n) bias[n] = mask[n] ? 0.0f : -INFINITY;
  in.attention.mask = as_mask(mask, 1, 1, len_q, len_k);
  const Results masked = expect_matches_oracle(in);
  in.attention.mask = {};
  in.attention.bias = contiguous(std::as_const(bias).data(), 1, 1, len_q, len_k);
  const Results biased = expect_matches_oracle(in);
  for (size_t n = 0; n < masked.o.size(); ++n) ASSERT_NEAR(masked.o[n], biased.o[n], 1e-6);
}

struct HidingRule {
  const char* name;
  void (*apply)(Attention&);
  int64_t hidden_begin, hidden_end;  // keys of 90 that none of the 20 queries sees
};
const HidingRule kHidingRules[] = {
    {"causal, top left", [](Attention& a) { a.causal = true, a.alignment = Alignment::top_left; }, 20, 90},
    {"window right, top left", [](Attention& a) { a.window_right = 3, a.alignment = Alignment::top_left; }, 23, 90},
    {"window left, bottom right", [](Attention& a) { a.window_left = 5; }, 0, 65},
    {"causal window, bottom right", [](Attention& a) { a.causal = true, a.window_left = 0; }, 0, 70},
};

TEST(HiddenValues, KeysNoQuerySeesReachNothing) {
  for (const HidingRule& rule : kHidingRules) {
    for (double garbage : {kNan, kInf, 1e10}) {
      SCOPED_TRACE(::testing::Message() << rule.name << " " << garbage);
      Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 2, .len_q = 20, .len_k = 90, .dim = 16, .dim_v = 16});
      rule.apply(in.attention);
      const Results clean = run(in);
      for (Buffer* buffer : {&in.k, &in.v})
        fill(narrow(buffer->view(), 2, rule.hidden_begin, rule.hidden_end - rule.hidden_begin), garbage);
      const Results r = expect_matches_oracle(in);
      EXPECT_TRUE(same_bits(r, clean));
    }
  }
}

TEST(HiddenValues, ColumnsAMaskTensorHidesReachNothing) {
  for (DType dtype : kFloatTypes) {
    for (double garbage : {kNan, kInf}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << garbage);
      Inputs in = dense({.batch = 1, .heads_q = 2, .heads_k = 2, .len_q = 33, .len_k = 100, .dtype = dtype});
      Mask mask(100, 1);
      for (int64_t j : {0, 1, 50, 99}) {
        mask[static_cast<size_t>(j)] = 0;
        for (Buffer* buffer : {&in.k, &in.v}) fill(narrow(buffer->view(), 2, j, 1), garbage);
      }
      in.attention.mask = as_mask(mask, 1, 1, 1, 100);
      expect_matches_oracle(in);
    }
  }
}

TEST(HiddenValues, BiasOfAHiddenPairReachesNothing) {
  Inputs in = dense({.len_q = 40, .len_k = 40});
  Buffer bias(contiguous<void>(nullptr, DType::f32, 1, 1, 40, 40));
  fill_normal(bias.view(), 4);
  for (int64_t i = 0; i < 39; ++i) fill(narrow(narrow(bias.view(), 2, i, 1), 3, i + 1, 39 - i), i % 2 ? kNan : kInf);
  in.attention.bias = bias.view();
  in.attention.causal = true;
  const Results r = expect_matches_oracle(in);
  EXPECT_EQ(r.dbias[1], 0);
}

TEST(HiddenValues, KeyReachesOnlyTheQueriesThatSeeIt) {
  for (double garbage : {kNan, 1e10}) {
    SCOPED_TRACE(garbage);
    Inputs in = dense({.len_q = 70, .len_k = 70});
    in.attention.causal = true;
    const Results clean = run(in);
    fill(narrow(in.k.view(), 2, 40, 1), garbage);
    const Results r = run(in);
    EXPECT_TRUE(same_bits(part(r.o, 0, 40 * 8), part(clean.o, 0, 40 * 8)));
    EXPECT_TRUE(same_bits(part(r.lse, 0, 40), part(clean.lse, 0, 40)));
    EXPECT_TRUE(same_bits(part(r.dq, 0, 40 * 8), part(clean.dq, 0, 40 * 8)));
  }
}

TEST(HiddenValues, QueriesThatSeeNothingReachNothing) {
  for (double garbage : {kNan, kInf}) {
    SCOPED_TRACE(garbage);
    Inputs in = dense({.len_q = 90, .len_k = 20});
    in.attention.causal = true;
    for (Buffer* buffer : {&in.q, &in.dout}) fill(narrow(buffer->view(), 2, 0, 70), garbage);
    const Results r = expect_matches_oracle(in);
    for (int64_t row : {0, 1, 64, 69}) expect_row_sees_nothing(r, row, 8, 8);
  }
}

TEST(VisibleValues, NanInALiveQueryReachesItsRowAlone) {
  for (DType dtype : kFloatTypes) {
    SCOPED_TRACE(name_of(dtype));
    Inputs in = dense({.batch = 2, .heads_q = 4, .heads_k = 4, .len_q = 16, .len_k = 16, .dtype = dtype});
    fill(narrow(narrow(narrow(in.q.view(), 0, 1, 1), 1, 2, 1), 2, 5, 1), kNan);
    const Results r = expect_matches_oracle(in);
    const int64_t row = (1 * 4 + 2) * 16 + 5;
    for (double value : part(r.o, row * 8, 8)) EXPECT_TRUE(std::isnan(value));
    EXPECT_TRUE(std::isnan(r.lse[static_cast<size_t>(row)]));
    EXPECT_TRUE(std::isfinite(r.lse[static_cast<size_t>(row - 1)]) &&
                std::isfinite(r.lse[static_cast<size_t>(row + 1)]));
  }
}

TEST(VisibleValues, NanInAVisibleKeyReachesEveryQueryThatSeesIt) {
  Inputs in = dense({.len_q = 70, .len_k = 70});
  in.attention.causal = true;
  fill(narrow(in.k.view(), 2, 40, 1), kNan);
  const Results r = run(in);
  for (int64_t row = 40; row < 70; ++row) {
    EXPECT_TRUE(std::isnan(r.lse[static_cast<size_t>(row)]));
    EXPECT_TRUE(std::isnan(r.o[static_cast<size_t>(row * 8)]) && std::isnan(r.dq[static_cast<size_t>(row * 8)]));
  }
}

}  // namespace
}  // namespace cuflash::test
