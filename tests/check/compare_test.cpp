// The comparison catches planted faults, and passes correctly rounded results.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check/run/compare.h"
#include "dtype.h"
#include "reference/naive.h"
#include "reference/noise.h"
#include "reference_sample.h"

namespace cuflash::check {
namespace {

using Values = std::vector<double>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

Values normal_values(size_t count, double deviation = 1, double mean = 0) {
  std::mt19937_64 random(count);
  std::normal_distribution<double> gauss(mean, deviation);
  Values values(count);
  for (double& x : values) x = gauss(random);
  return values;
}

Values rounded(DType type, const Values& values) {
  Values memory(values.size()), result(values.size());
  store_row(memory.data(), type, 0, static_cast<int64_t>(values.size()), values.data());
  load_row(memory.data(), type, 0, static_cast<int64_t>(values.size()), result.data());
  return result;
}

Values scaled(Values values, double factor) {
  for (double& x : values) x *= factor;
  return values;
}

// The result of a real problem, its naive evaluation, and its noise.
struct Compared {
  Quantity quantity;
  DType type;
  Values expected, naive, noise;

  std::string with(const Values& actual) const {
    return disagreement("result", quantity, type, type, rounded(type, actual), expected, naive, noise);
  }
};

std::vector<Compared> results(DType type) {
  const test::Sample s({2, 4, 2, 40, 50, 32, 16}, type);
  const auto f = reference::oracle_forward(s.attention), naive = reference::naive_forward(s.attention);
  const auto g = reference::oracle_backward(s.attention, s.dout, {});
  const auto naive_g = reference::naive_backward(s.attention, s.dout, {});
  const auto noise = reference::forward_noise(s.attention);
  const auto noise_g = reference::backward_noise(s.attention, s.dout, {});
  std::vector<Compared> all = {{Quantity::output, type, f.o, naive.o, noise.o},
                               {Quantity::gradient, type, g.dq, naive_g.dq, noise_g.dq},
                               {Quantity::gradient, type, g.dk, naive_g.dk, noise_g.dk},
                               {Quantity::gradient, type, g.dv, naive_g.dv, noise_g.dv}};
  const size_t count = all.size();
  for (size_t n = 0; n < count; ++n) {  // the rules hold without the noise too
    all.push_back(all[n]);
    all.back().noise.clear();
  }
  return all;
}

class EveryType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryType, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(EveryType, CorrectlyRoundedResultsPass) {
  for (const Compared& c : results(GetParam())) EXPECT_EQ(c.with(c.expected), "");
  for (size_t count : {1, 2, 3, 5, 8, 30, 100, 700, 5000}) {
    for (const Values& expected : {normal_values(count), normal_values(count, 1e-3), normal_values(count, 0.01, 40),
                                   Values(count, 1.0039), Values(count, 0)}) {
      for (Quantity quantity : {Quantity::output, Quantity::gradient}) {
        const Values result = rounded(GetParam(), expected);
        // The result passes even if the naive evaluation was exact by luck.
        EXPECT_EQ(disagreement("o", quantity, GetParam(), GetParam(), result, expected, expected), "") << count;
        EXPECT_EQ(disagreement("o", quantity, GetParam(), GetParam(), result, expected, result), "") << count;
      }
    }
  }
}

TEST(Compare, EitherRoundingOfATiePasses) {
  for (const auto& [type, step] : {std::pair{DType::f32, 0x1p-23}, {DType::f16, 0x1p-10}, {DType::bf16, 0x1p-7}}) {
    const Values tie(1000, 1 + step / 2);
    for (double side : {1.0, 1 + step}) {
      EXPECT_EQ(disagreement("o", Quantity::output, type, type, Values(1000, side), tie, tie), "");
    }
  }
}

TEST_P(EveryType, TheNaiveEvaluationPasses) {
  for (const Compared& c : results(GetParam())) EXPECT_EQ(c.with(c.naive), "");
}

TEST_P(EveryType, ScaleFaultsAreCaught) {
  for (const Compared& c : results(GetParam())) {
    for (double factor : {1.004, 0.996, 1.01, 0.99, -1.0, 0.0}) {
      EXPECT_NE(c.with(scaled(c.expected, factor)), "") << factor;
      EXPECT_NE(c.with(scaled(c.naive, factor)), "") << "naive " << factor;
    }
  }
}

TEST_P(EveryType, OneWrongElementIsCaught) {
  for (const Compared& c : results(GetParam())) {
    for (size_t n : {size_t{0}, c.expected.size() / 2, c.expected.size() - 1}) {
      Values actual = c.expected;
      actual[n] += 0.5;
      EXPECT_NE(c.with(actual).find("element " + std::to_string(n) + " of"), std::string::npos) << c.with(actual);
    }
  }
}

TEST_P(EveryType, AMissingTailIsCaught) {
  for (const Compared& c : results(GetParam())) {
    Values actual = c.expected;
    std::fill(actual.end() - 16, actual.end(), 0);
    EXPECT_NE(c.with(actual), "");
    actual.resize(actual.size() - 1);
    EXPECT_NE(disagreement("o", c.quantity, c.type, c.type, actual, c.expected, c.naive), "");
  }
}

TEST_P(EveryType, SpecialValuesStandInTheSamePlaces) {
  const Values expected = {1, kNan, kInf, -kInf, 0};
  const auto verdict = [&](const Values& actual) {
    return disagreement("o", Quantity::output, GetParam(), GetParam(), actual, expected, expected);
  };
  EXPECT_EQ(verdict(expected), "");
  EXPECT_NE(verdict({1, 0, kInf, -kInf, 0}), "");
  EXPECT_NE(verdict({1, kInf, kInf, -kInf, 0}), "");
  EXPECT_NE(verdict({1, kNan, -kInf, -kInf, 0}), "");
  EXPECT_NE(verdict({1, kNan, 1e30, -kInf, 0}), "");
  EXPECT_NE(verdict({1, kNan, kInf, -kInf, kNan}), "");
  EXPECT_NE(verdict({kInf, kNan, kInf, -kInf, 0}), "");
}

TEST_P(EveryType, LseIsHeldToItsOwnRule) {
  const DType stored = state_type(GetParam());
  Values expected = normal_values(200, 3), naive = expected;
  expected[7] = naive[7] = -kInf;
  const auto verdict = [&](const Values& actual) {
    return disagreement("lse", Quantity::lse, GetParam(), stored, actual, expected, naive);
  };
  EXPECT_EQ(verdict(rounded(stored, expected)), "");
  Values shifted = expected;
  for (double& x : shifted) x += 1;
  EXPECT_NE(verdict(shifted), "");
  shifted = expected;
  shifted[3] += 1e-3;
  EXPECT_NE(verdict(shifted), "");
  shifted = expected;
  shifted[7] = -50000;  // a finite stand-in for -inf
  EXPECT_NE(verdict(shifted), "");
}

TEST(Compare, OverflowOfTheStoredTypeIsInf) {
  const Values expected = {1e5, 1}, inf = {kInf, 1};
  EXPECT_EQ(disagreement("o", Quantity::output, DType::f16, DType::f16, inf, expected, expected), "");
  EXPECT_NE(disagreement("o", Quantity::output, DType::f16, DType::f32, inf, expected, expected), "");
  EXPECT_NE(disagreement("o", Quantity::output, DType::f16, DType::f16, {-kInf, 1}, expected, expected), "");
  EXPECT_NE(disagreement("o", Quantity::output, DType::f16, DType::f16, {kInf, 1}, {6e4, 1}, {6e4, 1}), "");
}

// A gradient that cancels to 0 in theory is noise in practice: the naive noise, or the bound, says how much is allowed.
TEST(Compare, NoiseAroundZeroIsAllowedAsFarAsTheBaselineHasIt) {
  const Values zero(100, 0), noise = normal_values(100, 1e-3), other = scaled(noise, -1), bound(100, 3e-3);
  for (DType type : {DType::f32, DType::bf16}) {
    EXPECT_EQ(disagreement("dq", Quantity::gradient, type, DType::f32, other, zero, noise), "");
    EXPECT_EQ(disagreement("dq", Quantity::gradient, type, DType::f32, noise, zero, zero, bound), "");
    EXPECT_NE(disagreement("dq", Quantity::gradient, type, DType::f32, noise, zero, zero), "");
    EXPECT_NE(disagreement("dq", Quantity::gradient, type, DType::f32, scaled(noise, 100), zero, noise), "");
  }
}

// Every element is below twice the largest naive error, but all are close to it: only the RMS tells.
TEST(Compare, AnErrorThatIsLargeEverywhereIsCaught) {
  const Values expected = normal_values(2000), error = normal_values(2001);
  Values naive = expected, actual = expected;
  naive[0] += 0.02;
  for (size_t n = 0; n < actual.size(); ++n) naive[n] += 1e-3 * error[n], actual[n] += error[n] > 0 ? 4e-3 : -4e-3;
  const std::string text = disagreement("o", Quantity::output, DType::bf16, DType::f32, actual, expected, naive);
  EXPECT_EQ(text.find("o: RMS error"), 0u) << text;
}

// The planted result is as far from the oracle as the naive one, but in another direction.
TEST(Compare, AWrongDirectionIsCaught) {
  const Values expected = normal_values(2000), error = normal_values(2001);
  Values actual = expected;
  for (size_t n = 0; n < actual.size(); ++n) actual[n] += 0.006 * error[n];
  const Values naive = scaled(expected, 1.01);
  const std::string text = disagreement("o", Quantity::output, DType::bf16, DType::f32, actual, expected, naive);
  EXPECT_EQ(text.find("o: 1 - cosine"), 0u) << text;
}

TEST(Compare, OneElementFarOffIsALargestError) {
  const Values expected = normal_values(2000);
  Values naive = expected, actual = expected;
  for (double& x : naive) x += 1e-3;
  actual[77] += 3e-3;
  const std::string text = disagreement("o", Quantity::output, DType::bf16, DType::f32, actual, expected, naive);
  EXPECT_EQ(text.find("o: largest error"), 0u) << text;
}

TEST(Compare, TheMessageNamesQuantityRuleAndElement) {
  const std::string text = disagreement("dq", Quantity::gradient, DType::f32, DType::f32, {1, 2.5}, {1, 2}, {1, 2});
  EXPECT_EQ(text.find("dq: largest error"), 0u) << text;
  EXPECT_NE(text.find("element 1 of 2 is 2.5, expected 2"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

// Equal terms round the same way, so the error is several times the noise, which assumes random signs.
TEST(Compare, ErrorsThatAddUpAreAllowedWhereTheyCan) {
  const Values expected(4, 1), noise(4, 1e-13), actual(4, 1 + 5e-13);
  const auto fault = [&](const Values& values, bool correlated) {
    return disagreement("x", Quantity::gradient, DType::f64, DType::f64, values, expected, expected, noise, correlated);
  };
  EXPECT_EQ(fault(actual, true), "");
  EXPECT_NE(fault(actual, false), "");
  EXPECT_NE(fault(Values(4, 1 + 1.2e-12), true), "");
}

// All elements of a row have the same error, but for the last digits of the exact result. 33 rows draw 33 naive errors, the
// largest of which another draw may well exceed; 1,000 rows bound it.
TEST(Compare, AFewNaiveErrorsAreAPoorBound) {
  const auto fault = [](size_t rows, bool correlated) {
    constexpr size_t kColumns = 4;
    const Values row_values = normal_values(rows);
    Values expected, naive, actual;
    for (size_t n = 0; n < rows * kColumns; ++n) {
      const size_t row = n / kColumns;
      const double sign = row % 2 == 0 ? 1 : -1, draw = 1e-3 * (1 - 1e-6 * static_cast<double>(row));
      expected.push_back(row_values[row]);
      naive.push_back(expected[n] + sign * draw * (1 + 1e-11 * static_cast<double>(n % kColumns)));
      actual.push_back(expected[n] + (row == 5 ? 2.7e-3 : 0));
    }
    return disagreement("dq", Quantity::gradient, DType::bf16, DType::f32, actual, expected, naive, {}, correlated);
  };
  EXPECT_EQ(fault(33, true), "");
  EXPECT_NE(fault(33, false), "");
  EXPECT_NE(fault(1000, true), "");
}

// 256 equal products of f16 in a tensor core, whose sum is truncated instead of rounded, moved an LSE by 4.3 times its noise,
// and 224 in f32 on a CPU by 6.4 times.
TEST(Compare, AnLseOfConstantRowsMayBeOffAsItsScoresAre) {
  const Values expected(100, 1.2), noise(100, 2.7e-5);
  const auto fault = [&](double off, bool correlated) {
    Values actual = expected;
    actual[7] += off;
    return disagreement("lse", Quantity::lse, DType::f16, DType::f32, actual, expected, expected, noise, correlated);
  };
  EXPECT_EQ(fault(1.15e-4, true), "");
  EXPECT_NE(fault(1.15e-4, false), "") << "1e-4 + 1e-5 of it are allowed";
  EXPECT_EQ(fault(1.7e-4, true), "");
  EXPECT_NE(fault(2.8e-4, true), "") << "ten times the noise are";
}

// One query over 989 equal keys, 192 equal products each: backward summed them in another order than forward, so that all
// elements of dV were too small by the same 2.6 times their noise.
TEST(Compare, AnErrorThatAllElementsShareMovesTheSlope) {
  const Values expected = normal_values(6000);
  Values noise = expected;
  for (double& x : noise) x = 4e-5 * std::abs(x);
  const auto fault = [&](double relative_error, bool correlated) {
    return disagreement("dv", Quantity::gradient, DType::f32, DType::f32, scaled(expected, 1 + relative_error),
                        expected, expected, noise, correlated);
  };
  EXPECT_EQ(fault(-1.03e-4, true), "");
  EXPECT_EQ(fault(2.3e-4, true), "");
  EXPECT_NE(fault(-1.03e-4, false), "") << "errors of random sign are at most twice the noise";
  EXPECT_NE(fault(4.3e-4, true), "") << "ten times the noise are allowed, and 1e-5";
}

// Products round dO to the type of q, whatever its stored type. If few keys are visible, dP and delta are nearly equal, and
// this rounding outweighs all others.
TEST(Compare, RoundingDoutIsPartOfTheNoise) {
  test::Sample s({1, 1, 1, 300, 2, 32, 96}, DType::bf16);
  const Values dout = normal_values(300 * 96);
  const ConstTensor exact = s.tensor(DType::f32, dout, 1, 1, 300, 96);
  const ConstTensor narrow = s.tensor(DType::f32, rounded(DType::bf16, dout), 1, 1, 300, 96);
  const auto expected = reference::oracle_backward(s.attention, exact, {});
  const auto rounded_once = reference::oracle_backward(s.attention, narrow, {});
  const auto noise = reference::backward_noise(s.attention, exact, {});
  const auto fault = [&](const Values& actual, const Values& of, const Values& allowed) {
    return disagreement("x", Quantity::gradient, DType::bf16, DType::f32, actual, of, of, allowed, false);
  };
  EXPECT_EQ(fault(rounded_once.dq, expected.dq, noise.dq), "");
  EXPECT_EQ(fault(rounded_once.dk, expected.dk, noise.dk), "");
  EXPECT_EQ(fault(rounded_once.dv, expected.dv, noise.dv), "");
  Values wrong = rounded_once.dq;
  wrong[7] += 10 * noise.dq[7];
  EXPECT_NE(fault(wrong, expected.dq, noise.dq), "");
}

// Values whose squares underflow in f64 are compared like others.
TEST(Compare, TinyValuesHaveErrorsAndNoiseToo) {
  constexpr double kTiny = 0x1p-530;
  const Values expected(4, kTiny), noise(4, 1e-11 * kTiny);
  const auto fault = [&](double error) {
    return disagreement("x", Quantity::gradient, DType::f64, DType::f64, Values(4, kTiny * (1 + error)), expected,
                        expected, noise, false);
  };
  EXPECT_EQ(fault(1.5e-11), "");
  EXPECT_NE(fault(2.5e-11), "");
}

}  // namespace
}  // namespace cuflash::check
