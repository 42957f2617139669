// Compares the oracle with results worked out by hand, with its own finite differences, and with the naive evaluation.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "reference/naive.h"
#include "reference/noise.h"
#include "reference/oracle.h"
#include "reference_sample.h"

namespace cuflash {
namespace {

using namespace reference;
using test::Sample;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const double kLn3 = std::log(3.0);

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t n = 0; n < actual.size(); ++n) {
    if (actual[n] == expected[n]) continue;  // Inf too
    EXPECT_NEAR(actual[n], expected[n], tolerance) << "element " << n;
  }
}

double& element(const ConstTensor& t, int64_t index) { return static_cast<double*>(const_cast<void*>(t.data))[index]; }

int64_t stored_elements(const ConstTensor& t) {  // without repeated dimensions
  int64_t count = t.rank == 0 ? 0 : 1;
  for (size_t d = 0; d < static_cast<size_t>(t.rank); ++d) count *= t.stride[d] == 0 ? 1 : t.shape[d];
  return count;
}

// One query of one head with two keys; the raw scores are 0 and `score`.
struct TwoKeys : Sample {
  explicit TwoKeys(double score) : Sample({1, 1, 1, 1, 2, 1, 1}) {
    attention.scale = 1;
    element(attention.q, 0) = 1;
    element(attention.k, 0) = 0, element(attention.k, 1) = score;
    element(attention.v, 0) = 4, element(attention.v, 1) = 8;
  }
  void expect(double o, double lse) const {
    const Forward f = oracle_forward(attention);
    expect_near(f.o, {o}, 1e-14);
    expect_near(f.lse, {lse}, 1e-14);
  }
};

TEST(OracleByHand, SoftmaxOfTwoScores) { TwoKeys(kLn3).expect(7, std::log(4.0)); }

TEST(OracleByHand, ScaleMultipliesTheScore) {
  TwoKeys t(2 * kLn3);
  t.attention.scale = 0.5;
  t.expect(7, std::log(4.0));
}

TEST(OracleByHand, DefaultScaleIsOneOverRootD) {
  Sample s({1, 1, 1, 1, 2, 4, 1});
  for (int64_t d = 0; d < 4; ++d) {
    element(s.attention.q, d) = 1;
    element(s.attention.k, d) = 0, element(s.attention.k, 4 + d) = kLn3 / 2;  // dot 2 ln 3, times 1/2
  }
  EXPECT_NEAR(oracle_forward(s.attention).lse[0], std::log(4.0), 1e-14);
}

TEST(OracleByHand, SoftcapBoundsTheScore) {
  TwoKeys t(2 * std::atanh(kLn3 / 2));
  t.attention.softcap = 2;
  t.expect(7, std::log(4.0));
}

TEST(OracleByHand, AlibiCountsFromTheAlignedPosition) {
  TwoKeys t(0);
  t.attention.alibi_slopes = t.tensor(DType::f32, {1}, 1);
  t.expect((4 * std::exp(-1.0) + 8) / (1 + std::exp(-1.0)), std::log(1 + std::exp(-1.0)));  // at key 1
  t.attention.alignment = Alignment::top_left;
  t.expect((4 + 8 * std::exp(-1.0)) / (1 + std::exp(-1.0)), std::log(1 + std::exp(-1.0)));  // at key 0
}

TEST(OracleByHand, BiasIsAddedBehindSoftcap) {
  TwoKeys t(1e6);  // capped to 1
  t.attention.softcap = 1;
  t.attention.bias = t.tensor(DType::f64, {0, kLn3 - 1}, 1, 1, 1, 2);
  t.expect(7, std::log(4.0));
}

TEST(OracleByHand, SinkTakesItsShare) {
  TwoKeys t(kLn3);
  t.attention.sink = t.tensor(DType::f64, {std::log(4.0)}, 1);
  t.expect(3.5, std::log(8.0));
  element(t.attention.sink, 0) = -kInf;
  t.expect(7, std::log(4.0));
}

TEST(OracleByHand, MaskSelects) {
  TwoKeys t(kNan);
  t.attention.mask = t.tensor(DType::boolean, {1, 0}, 1, 1, 1, 2);
  t.expect(4, 0);
}

TEST(OracleByHand, RowsThatSeeNothing) {
  TwoKeys t(kLn3);
  t.attention.bias = t.tensor(DType::f64, {-kInf, -kInf}, 1, 1, 1, 2);
  t.expect(0, -kInf);
  t.attention.mask = t.tensor(DType::boolean, {0, 0}, 1, 1, 1, 2);
  t.expect(0, -kInf);
  t.attention.sink = t.tensor(DType::f64, {5}, 1);
  t.expect(0, 5);
  const Backward g = oracle_backward(t.attention, t.dout, t.tensor(DType::f64, {2}, 1, 1, 1));
  for (const auto* gradient : {&g.dq, &g.dk, &g.dv, &g.dbias}) {
    for (double x : *gradient) EXPECT_EQ(x, 0);
  }
  EXPECT_EQ(g.dsink[0], 2);  // LSE is the sink itself
}

TEST(OracleByHand, NanInASeenKeyReachesTheOutputs) {
  const TwoKeys t(kNan);
  const Forward f = oracle_forward(t.attention);
  EXPECT_TRUE(std::isnan(f.o[0]));
  EXPECT_TRUE(std::isnan(f.lse[0]));
}

// With equal scores LSE is ln(number of visible keys) and O their mean: V = 2^j names them.
void expect_visible(int64_t len_q, int64_t len_k, const std::function<void(Attention&)>& set,
                    const std::vector<std::vector<int64_t>>& visible) {
  Sample s({1, 1, 1, len_q, len_k, 1, 1});
  for (int64_t i = 0; i < len_q; ++i) element(s.attention.q, i) = 0;
  for (int64_t j = 0; j < len_k; ++j) element(s.attention.v, j) = std::exp2(static_cast<double>(j));
  set(s.attention);
  const Forward f = oracle_forward(s.attention);
  for (size_t i = 0; i < visible.size(); ++i) {
    double sum = 0;
    for (int64_t j : visible[i]) sum += std::exp2(static_cast<double>(j));
    const double count = static_cast<double>(visible[i].size());
    EXPECT_NEAR(f.o[i], count == 0 ? 0 : sum / count, 1e-13) << "query " << i;
    EXPECT_NEAR(std::exp(f.lse[i]), count, 1e-13) << "query " << i;
  }
}

TEST(OracleByHand, CausalInBothAlignments) {
  const auto causal = [](Attention& a) { a.causal = true; };
  const auto top_left = [](Attention& a) { a.causal = true, a.alignment = Alignment::top_left; };
  expect_visible(2, 5, causal, {{0, 1, 2, 3}, {0, 1, 2, 3, 4}});
  expect_visible(2, 5, top_left, {{0}, {0, 1}});
  expect_visible(5, 2, causal, {{}, {}, {}, {0}, {0, 1}});
  expect_visible(5, 2, top_left, {{0}, {0, 1}, {0, 1}, {0, 1}, {0, 1}});
}

TEST(OracleByHand, WindowsOfEverySize) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const auto window = [](int64_t left, int64_t right) {
    return [=](Attention& a) { a.window_left = left, a.window_right = right; };
  };
  expect_visible(3, 4, window(1, 0), {{0, 1}, {1, 2}, {2, 3}});
  expect_visible(3, 4, window(0, 1), {{1, 2}, {2, 3}, {3}});
  expect_visible(4, 3, window(0, 0), {{}, {0}, {1}, {2}});
  expect_visible(3, 4, window(-1, 0), {{0, 1}, {0, 1, 2}, {0, 1, 2, 3}});
  for (int64_t side : {int64_t{-1}, int64_t{100}, kHuge}) {
    expect_visible(3, 2, window(side, side), {{0, 1}, {0, 1}, {0, 1}});
    expect_visible(3, 2, window(0, side), {{0, 1}, {0, 1}, {1}});
    expect_visible(3, 2, window(side, 0), {{}, {0}, {0, 1}});
  }
}

// Beside a score of 0, scores of -36 have weights of 2e-16, which would be rounded one by one.
TEST(OracleByHand, SmallWeightsAreNotLost) {
  constexpr int64_t kKeys = 2000;
  Sample t({1, 1, 1, 1, kKeys, 1, 1});
  t.attention.scale = 1;
  element(t.attention.q, 0) = 1;
  for (int64_t j = 0; j < kKeys; ++j)
    element(t.attention.k, j) = j == 0 ? 0 : -36, element(t.attention.v, j) = j == 0 ? -0.121 : 0.9;
  const long double rest = (kKeys - 1) * std::exp(-36.0L);
  const Forward f = oracle_forward(t.attention);
  EXPECT_NEAR(f.o[0], static_cast<double>((-0.121L + rest * 0.9L) / (1 + rest)), 4e-17);
  EXPECT_NEAR(f.lse[0], static_cast<double>(std::log1p(rest)), 2e-16);
}

TEST(OracleByHand, EmptyProblems) {
  const auto sizes = [](int64_t batch, int64_t len_q, int64_t len_k) {
    return Sample::Sizes{batch, 4, 2, len_q, len_k, 3, 2};
  };
  for (const auto& size : {sizes(0, 3, 5), sizes(2, 0, 5), sizes(2, 3, 0)}) {
    const Sample s(size);
    for (const Forward& f : {oracle_forward(s.attention), naive_forward(s.attention)}) {
      expect_near(f.o, std::vector<double>(static_cast<size_t>(size.batch * 4 * size.len_q * 2), 0), 0);
      expect_near(f.lse, std::vector<double>(static_cast<size_t>(size.batch * 4 * size.len_q), -kInf), 0);
    }
    for (const Backward& g : {oracle_backward(s.attention, s.dout, {}), naive_backward(s.attention, s.dout, {})}) {
      expect_near(g.dk, std::vector<double>(static_cast<size_t>(size.batch * 2 * size.len_k * 3), 0), 0);
    }
  }
}

// Combinations of options, each applied to a fresh sample of the default size.
struct Option {
  const char* name;
  std::function<void(Sample&)> set;
};
void PrintTo(const Option& option, std::ostream* out) { *out << option.name; }

void add_bias(Sample& s) { s.attention.bias = s.normal(s.type, 1, 2, 4, 3, 5); }
void add_sink(Sample& s) { s.attention.sink = s.normal(s.type, 1, 4); }
void add_dlse(Sample& s) { s.dlse = s.normal(state_type(s.type), 1, 2, 4, 3); }
void add_mask(Sample& s) {
  s.attention.mask = s.tensor(DType::boolean, {1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1}, 1, 1, 3, 5);
}

const Option kOptions[] = {
    {"Plain", [](Sample&) {}},
    {"Dlse", add_dlse},
    {"SoftcapScale", [](Sample& s) { s.attention.softcap = 0.7, s.attention.scale = 0.9; }},
    {"BiasAlibi", [](Sample& s) { add_bias(s), s.attention.alibi_slopes = s.normal(DType::f32, 1, 2, 4); }},
    {"BiasOfExtentOne", [](Sample& s) { s.attention.bias = s.normal(s.type, 1, 1, 4, 1, 5), s.attention.softcap = 2; }},
    {"BiasOfStrideZero",
     [](Sample& s) {
       ConstTensor bias = s.normal(s.type, 1, 2, 1, 3, 5);
       bias.shape[1] = 4, bias.stride[1] = 0;
       s.attention.bias = bias;
     }},
    {"SinkDlse", [](Sample& s) { add_sink(s), add_dlse(s); }},
    {"SinkCausalTopLeft",
     [](Sample& s) { add_sink(s), s.attention.causal = true, s.attention.alignment = Alignment::top_left; }},
    {"Dropout", [](Sample& s) { s.attention.dropout_p = 0.4, s.attention.dropout_seed = 11; }},
    {"WindowMask", [](Sample& s) { add_mask(s), s.attention.window_left = 2, s.attention.window_right = 1; }},
    {"PaddedCausal",
     [](Sample& s) {
       s.attention.seqlens_q = s.tensor(DType::i32, {3, 2}, 2);
       s.attention.seqlens_k = s.tensor(DType::i32, {4, 1}, 2);
       s.attention.causal = true;
     }},
    {"Everything",
     [](Sample& s) {
       add_bias(s), add_sink(s), add_dlse(s), add_mask(s);
       s.attention.alibi_slopes = s.normal(DType::f32, 1, 4);
       s.attention.softcap = 1.5, s.attention.dropout_p = 0.3, s.attention.dropout_offset = 5;
       s.attention.window_left = 3, s.attention.window_right = 1;
       s.attention.seqlens_k = s.tensor(DType::i32, {5, 3}, 2);
     }},
};

class References : public testing::TestWithParam<Option> {};

double loss(const Sample& s) {
  const Forward f = oracle_forward(s.attention);
  double sum = 0;
  for (size_t n = 0; n < f.o.size(); ++n) sum += element(s.dout, static_cast<int64_t>(n)) * f.o[n];
  for (size_t n = 0; s.dlse && n < f.lse.size(); ++n) {
    if (std::isfinite(f.lse[n])) sum += element(s.dlse, static_cast<int64_t>(n)) * f.lse[n];
  }
  return sum;
}

TEST_P(References, GradientsAreFiniteDifferences) {
  Sample s;
  GetParam().set(s);
  const Backward g = oracle_backward(s.attention, s.dout, s.dlse);
  const auto differences = [&](const ConstTensor& t) {
    std::vector<double> result;
    for (int64_t n = 0; n < stored_elements(t); ++n) {
      constexpr double kStep = 1e-5;  // balances h^2 against 1e-16 / h: errors about 1e-10
      double& x = element(t, n);
      const double before = x;
      x = before + kStep;
      const double above = loss(s);
      x = before - kStep;
      const double below = loss(s);
      x = before;
      result.push_back((above - below) / (2 * kStep));
    }
    return result;
  };
  expect_near(g.dq, differences(s.attention.q), 1e-8);
  expect_near(g.dk, differences(s.attention.k), 1e-8);
  expect_near(g.dv, differences(s.attention.v), 1e-8);
  expect_near(g.dbias, differences(s.attention.bias), 1e-8);
  expect_near(g.dsink, differences(s.attention.sink), 1e-8);
}

// Two evaluations that share only the lookups of inputs.h.
TEST_P(References, NaiveInF64EqualsOracle) {
  Sample s;
  GetParam().set(s);
  const Forward f = oracle_forward(s.attention), naive_f = naive_forward(s.attention);
  expect_near(naive_f.o, f.o, 1e-13);
  expect_near(naive_f.lse, f.lse, 1e-13);
  const Backward g = oracle_backward(s.attention, s.dout, s.dlse),
                 naive_g = naive_backward(s.attention, s.dout, s.dlse);
  expect_near(naive_g.dq, g.dq, 1e-13);
  expect_near(naive_g.dk, g.dk, 1e-13);
  expect_near(naive_g.dv, g.dv, 1e-13);
  expect_near(naive_g.dbias, g.dbias, 1e-13);
  expect_near(naive_g.dsink, g.dsink, 1e-13);
}

void expect_within(const std::vector<double>& actual, const std::vector<double>& expected,
                   const std::vector<double>& noise) {
  for (size_t n = 0; n < actual.size(); ++n) {
    if (actual[n] == expected[n]) continue;  // Inf too
    EXPECT_LE(std::abs(actual[n] - expected[n]), 3 * noise[n] + 1e-36) << "element " << n;
  }
}

// f32 arithmetic stays within the bound (and 1e-36, where it underflows), for ordinary scores and for scores of about
// 1e4, where a bound that ignored them would be off by four orders of magnitude.
TEST_P(References, NoiseBoundsTheErrorOfF32) {
  for (double deviation : {1.0, 100.0}) {
    Sample s(Sample::Sizes{}, DType::f32, deviation);
    GetParam().set(s);
    const Forward f = oracle_forward(s.attention), naive = naive_forward(s.attention),
                  noise = forward_noise(s.attention);
    expect_within(naive.o, f.o, noise.o);
    expect_within(naive.lse, f.lse, noise.lse);
    const Backward g = oracle_backward(s.attention, s.dout, s.dlse);
    const Backward naive_g = naive_backward(s.attention, s.dout, s.dlse);
    const Backward noise_g = backward_noise(s.attention, s.dout, s.dlse);
    expect_within(naive_g.dq, g.dq, noise_g.dq);
    expect_within(naive_g.dk, g.dk, noise_g.dk);
    expect_within(naive_g.dv, g.dv, noise_g.dv);
    expect_within(naive_g.dbias, g.dbias, noise_g.dbias);
    expect_within(naive_g.dsink, g.dsink, noise_g.dsink);
    if (deviation == 1) {
      for (double x : noise.o) EXPECT_LT(x, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, References, testing::ValuesIn(kOptions),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Oracle, HiddenNanReachesNothing) {
  Sample s;
  s.attention.window_left = 1, s.attention.window_right = 0;  // queries 0, 1, 2 are at keys 2, 3, 4: key 0 is hidden
  const Forward clean = oracle_forward(s.attention);
  const Backward clean_g = oracle_backward(s.attention, s.dout, s.dlse);
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t d = 0; d < 3; ++d) element(s.attention.k, head * 15 + d) = kNan;
    for (int64_t d = 0; d < 2; ++d) element(s.attention.v, head * 10 + d) = kInf;
  }
  for (const Forward& f : {oracle_forward(s.attention), naive_forward(s.attention)}) {
    expect_near(f.o, clean.o, 1e-13);
    expect_near(f.lse, clean.lse, 1e-13);
  }
  for (const Backward& g :
       {oracle_backward(s.attention, s.dout, s.dlse), naive_backward(s.attention, s.dout, s.dlse)}) {
    expect_near(g.dq, clean_g.dq, 1e-13);
    expect_near(g.dk, clean_g.dk, 1e-13);
    expect_near(g.dv, clean_g.dv, 1e-13);
  }
}

// cu = [0, 3, 3, 5] and [0, 2, 4, 8] in buffers of 6 and 9 rows, against a dense problem for each sequence.
TEST(Oracle, PackedEqualsOneDenseCallPerSequence) {
  const std::vector<int64_t> cu_q = {0, 3, 3, 5}, cu_k = {0, 2, 4, 8};
  Sample s;
  Attention& a = s.attention;
  a.q = s.normal(DType::f64, 1, 6, 4, 3), a.k = s.normal(DType::f64, 1, 9, 2, 3),
  a.v = s.normal(DType::f64, 1, 9, 2, 2);
  const ConstTensor dout = s.normal(DType::f64, 1, 6, 4, 2), dlse = s.normal(DType::f64, 1, 4, 6);
  a.bias = s.normal(DType::f64, 1, 3, 1, 3, 4);
  a.causal = true;
  a.cu_seqlens_q = s.tensor(DType::i32, {0, 3, 3, 5}, 4), a.cu_seqlens_k = s.tensor(DType::i32, {0, 2, 4, 8}, 4);
  const Forward packed = oracle_forward(a);
  const Backward packed_g = oracle_backward(a, dout, dlse);

  // Views of one sequence with the strides of the packed tensor.
  const auto sequence = [](const ConstTensor& t, int64_t begin, int64_t length) {
    const auto* data = static_cast<const double*>(t.data) + begin * t.stride[0];
    return ConstTensor{data, t.dtype, 4, {1, t.shape[1], length, t.shape[2]}, {0, t.stride[1], t.stride[0], 1}};
  };
  // Element (h, i, d) of a dense result against the packed [t][h][d].
  const auto expect_rows = [](const std::vector<double>& dense, const std::vector<double>& all, int64_t begin,
                              int64_t heads, int64_t length, int64_t width) {
    for (int64_t n = 0; n < heads * length * width; ++n) {
      const int64_t h = n / (length * width), i = n / width % length, d = n % width;
      EXPECT_NEAR(dense[static_cast<size_t>(n)], all[static_cast<size_t>(((begin + i) * heads + h) * width + d)],
                  1e-14);
    }
  };
  for (size_t b = 0; b < 3; ++b) {
    const int64_t len_q = cu_q[b + 1] - cu_q[b], len_k = cu_k[b + 1] - cu_k[b];
    Attention dense{
        .q = sequence(a.q, cu_q[b], len_q), .k = sequence(a.k, cu_k[b], len_k), .v = sequence(a.v, cu_k[b], len_k)};
    dense.causal = true;
    dense.bias = {
        static_cast<const double*>(a.bias.data) + b * 12, DType::f64, 4, {1, 1, len_q, len_k}, {12, 12, 4, 1}};
    const ConstTensor dense_dlse{
        static_cast<const double*>(dlse.data) + cu_q[b], DType::f64, 3, {1, 4, len_q}, {0, 6, 1}};
    const Forward f = oracle_forward(dense);
    const Backward g = oracle_backward(dense, sequence(dout, cu_q[b], len_q), dense_dlse);
    expect_rows(f.o, packed.o, cu_q[b], 4, len_q, 2);
    expect_rows(g.dq, packed_g.dq, cu_q[b], 4, len_q, 3);
    expect_rows(g.dk, packed_g.dk, cu_k[b], 2, len_k, 3);
    expect_rows(g.dv, packed_g.dv, cu_k[b], 2, len_k, 2);
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t i = 0; i < len_q; ++i) {
        const double expected = f.lse[static_cast<size_t>(h * len_q + i)];
        const double actual = packed.lse[static_cast<size_t>(h * 6 + cu_q[b] + i)];
        EXPECT_TRUE(actual == expected || std::abs(actual - expected) < 1e-14);
      }
    }
  }
  for (size_t n = 5 * 4 * 2; n < packed.o.size(); ++n) EXPECT_EQ(packed.o[n], 0);  // the row beyond the end
  const Forward naive = naive_forward(a);
  expect_near(naive.o, packed.o, 1e-13);
  expect_near(naive.lse, packed.lse, 1e-13);
}

TEST(Oracle, PaddedRowsAreZero) {
  Sample s;
  s.attention.seqlens_q = s.tensor(DType::i32, {2, 0}, 2);
  const Forward f = oracle_forward(s.attention);
  const Backward g = oracle_backward(s.attention, s.dout, {});
  for (size_t row = 0; row < f.lse.size(); ++row) {
    const bool exists = row < 12 && row % 3 < 2;
    EXPECT_EQ(std::isfinite(f.lse[row]), exists) << "row " << row;
    for (size_t d = 0; d < 2; ++d) EXPECT_EQ(f.o[row * 2 + d] != 0, exists) << "row " << row;
    for (size_t d = 0; d < 3; ++d) EXPECT_EQ(g.dq[row * 3 + d] != 0, exists) << "row " << row;
  }
}

TEST(Naive, RoundsToTheTypeOfTheInputs) {
  for (DType type : {DType::f16, DType::bf16}) {
    Sample s({1, 2, 1, 20, 30, 16, 8}, type);
    const Forward naive = naive_forward(s.attention), exact = oracle_forward(s.attention);
    double error = 0;
    for (size_t n = 0; n < naive.o.size(); ++n) {
      double stored = 0, widened = 0;
      store_row(&stored, type, 0, 1, &naive.o[n]);
      load_row(&stored, type, 0, 1, &widened);
      EXPECT_EQ(widened, naive.o[n]);
      error = std::max(error, std::abs(naive.o[n] - exact.o[n]));
    }
    const double roundoff = type == DType::f16 ? 0x1p-11 : 0x1p-8;
    EXPECT_GT(error, roundoff / 8);
    EXPECT_LT(error, roundoff * 8);
  }
}

TEST(Naive, ReportsTheBytesOfItsMatrices) {
  Sample s({2, 4, 2, 30, 50, 3, 2}, DType::bf16);
  EXPECT_EQ(naive_forward_bytes(s.attention), size_t{2 * 4 * 30 * 50} * 2 * sizeof(float));
  EXPECT_EQ(naive_backward_bytes(s.attention), size_t{2 * 4 * 30 * 50} * 3 * sizeof(float));
  s.attention.dropout_p = 0.5;
  EXPECT_EQ(naive_backward_bytes(s.attention), size_t{2 * 4 * 30 * 50} * 4 * sizeof(float));
}

}  // namespace
}  // namespace cuflash
