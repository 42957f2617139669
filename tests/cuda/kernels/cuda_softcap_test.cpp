// The tanh of softcap for f16 and bf16 (kernels/attn/softcap.h), compiled for the host, over the floats. The host's
// exponential and reciprocal are exact to half an ulp; those of a GPU have an error of 2 and 1 ulp, which adds at most
// 2.2e-7 to tanh.
#define cuflash host_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "attn/softcap.h"
// clang-format on
#undef cuflash

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace {

using namespace host_kernels;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double exact(float argument) { return std::tanh(static_cast<double>(argument) / kTanhArgument); }

// Floats at regular distances of their bits, which is to say in all powers of two, denormal and beyond all scores.
template <class Function>
void for_floats(Function&& function) {
  constexpr uint64_t kStep = 509, kFloats = uint64_t{1} << 32;
  for (uint64_t bits = 0; bits < kFloats; bits += kStep)
    if (const float x = __uint_as_float(static_cast<unsigned>(bits)); x == x) function(x);
}

TEST(SoftcapTanh, IsCloseToTanh) {
  double largest = 0, largest_relative = 0;
  for_floats([&](float x) {
    const double error = std::fabs(tanh_of_argument(x) - exact(x));
    largest = std::max(largest, error);
    // Below 2^-100 the polynomial's products underflow.
    if (std::fabs(x) < 2 && std::fabs(x) > 0x1p-100)
      largest_relative = std::max(largest_relative, error / std::fabs(exact(x)));
  });
  EXPECT_LT(largest, 2.8e-7);
  EXPECT_LT(largest_relative, 6.5e-7);
}

// Gradients of scores near the cap are small, and sums of many would show an error of one sign.
TEST(SoftcapTanh, LeavesTheDerivativeItsDigitsNearTheCap) {
  double largest = 0;
  for_floats([&](float x) {
    const float t = tanh_of_argument(x);
    const double cosh = std::cosh(std::min(std::fabs(x) / kTanhArgument, 300.0)), derivative = 1 / cosh / cosh;
    if (derivative < 1e-3) largest = std::max(largest, std::fabs((1.0f - t * t) - derivative));
  });
  EXPECT_LT(largest, 1.3e-7);
}

// A warp skips the exponentials if no argument has this bit, and gets the same bits.
TEST(SoftcapTanh, OneBitTellsWhetherThePolynomialServes) {
  int differing = 0;
  for_floats([&](float x) {
    const bool in_range = (__float_as_uint(x) & kBeyondTanhRange) == 0;
    if (in_range) differing += __float_as_uint(tanh_in_range(x)) != __float_as_uint(tanh_of_argument(x));
    else differing += __float_as_uint(tanh_beyond_range(x)) != __float_as_uint(tanh_of_argument(x));
  });
  EXPECT_EQ(differing, 0);
  EXPECT_NE(__float_as_uint(std::numeric_limits<float>::quiet_NaN()) & kBeyondTanhRange, 0u);
}

TEST(SoftcapTanh, ReachesItsLimitsAndKeepsNan) {
  EXPECT_EQ(tanh_of_argument(kInfinity), 1.0f);
  EXPECT_EQ(tanh_of_argument(-kInfinity), -1.0f);
  EXPECT_EQ(tanh_of_argument(std::numeric_limits<float>::max()), 1.0f);
  EXPECT_EQ(tanh_of_argument(0.0f), 0.0f);
  const float nan = tanh_of_argument(std::numeric_limits<float>::quiet_NaN());
  EXPECT_NE(nan, nan);
}

// Exponents of softcap from dot products, as a softmax with a fixed reference takes them.
struct Cap {
  double scale, softcap;
  CapPolynomial polynomial = cap_polynomial(scale, softcap);

  double exact(float x) const { return softcap * std::tanh(scale * x / softcap); }
  double score(float x) const {
    const float top = static_cast<float>(softcap * kLog2e);
    return cap_exponent(x, polynomial, top, 0.0f) / kLog2e;
  }
};
constexpr double kScales[] = {0.125, 0.08838834764831845, 1, -0.3, 1e-3}, kCaps[] = {0.01, 0.5, 3, 30, 50.2};

TEST(CapExponent, IsCloseToTanh) {
  for (const double scale : kScales)
    for (const double softcap : kCaps) {
      const Cap cap{scale, softcap};
      ASSERT_GT(cap.polynomial.limit, 0.0f) << scale << " " << softcap;
      double relative_inside = 0, beyond = 0, all = 0;
      const double unit = softcap / std::fabs(scale);
      for (int n = -1000; n <= 20000; ++n)  // tanh of 1e-4 to 20, the end of the range among them
        for (const double u : {std::pow(10.0, n / 250.0), 0.375 + n * 1e-6})
          for (const double sign : {1.0, -1.0}) {
            if (u > 20) continue;
            const float x = static_cast<float>(sign * u * unit);
            const double error = std::fabs(cap.score(x) - cap.exact(x));
            all = std::max(all, error);
            if (std::fabs(x) < cap.polynomial.limit && u > 1e-4)
              relative_inside = std::max(relative_inside, error / std::fabs(cap.exact(x)));
            if (std::fabs(x) >= cap.polynomial.limit) beyond = std::max(beyond, error / softcap);
          }
      EXPECT_LT(relative_inside, 4.5e-6) << scale << " " << softcap;
      EXPECT_LT(beyond, 5e-7) << scale << " " << softcap;
      EXPECT_LT(all, 1e-4) << scale << " " << softcap;
    }
}

// A tile that is in range takes the polynomial alone, and gets the same bits.
TEST(CapExponent, IsThePolynomialWithinItsLimitAlone) {
  const Cap cap{0.125, 30};
  const float limit = cap.polynomial.limit, shift = -1.75f, top = 30 * static_cast<float>(kLog2e) + shift;
  EXPECT_NEAR(limit, 0.375 * 30 / 0.125, 1e-4);
  int differing = 0, same_beyond = 0;
  for_floats([&](float x) {
    const unsigned inside = __float_as_uint(cap_exponent_in_range(x, cap.polynomial, shift));
    const unsigned any = __float_as_uint(cap_exponent(x, cap.polynomial, top, shift));
    if (std::fabs(x) < limit) differing += inside != any;
    else same_beyond += inside == any;
  });
  EXPECT_EQ(differing, 0);
  EXPECT_LT(same_beyond, 100);
}

TEST(CapExponent, ReachesTheCapAndKeepsNan) {
  const Cap cap{0.125, 30}, negative{-0.125, 30};
  for (const float x : {kInfinity, std::numeric_limits<float>::max()}) {
    EXPECT_NEAR(cap.score(x), 30, 1e-5);
    EXPECT_NEAR(cap.score(-x), -30, 1e-5);
    EXPECT_NEAR(negative.score(x), -30, 1e-5);
  }
  EXPECT_EQ(cap.score(0.0f), 0);
  EXPECT_TRUE(std::isnan(cap.score(std::numeric_limits<float>::quiet_NaN())));
}

// Exponents with the derivative of softcap, as backward takes them.
TEST(CapGradient, IsCloseToTheDerivative) {
  for (const double scale : {0.125, 0.08838834764831845, 1.0, 1e-3})
    for (const double softcap : {1e-2, 0.5, 30.0, 60.0}) {
      const CapDerivative cap = cap_derivative(scale, softcap);
      const float limit = cap.exponent.limit, shift = -3.5f;
      ASSERT_GT(limit, 0.0f) << scale << " " << softcap;
      double inside = 0, beyond = 0;
      int differing = 0;
      for (int n = 0; n <= 20000; ++n)  // tanh of 1e-6 to 20, the end of the range among them
        for (const double u : {20 * std::pow(10.0, n / 3000.0 - 6.5), 0.375 + (n - 10000) * 1e-7})
          for (const double sign : {1.0, -1.0}) {
            const float x = static_cast<float>(sign * u * softcap / scale);
            const CapGradient any = cap_gradient(x, cap, shift);
            const double tanh = std::tanh(scale / softcap * x), error = std::fabs(any.slope - (1 - tanh * tanh));
            (std::fabs(x) < limit ? inside : beyond) = std::max(std::fabs(x) < limit ? inside : beyond, error);
            differing += any.exponent != cap_exponent(x, cap.exponent, cap.top + shift, shift);
            if (std::fabs(x) >= limit) continue;
            const CapGradient alone = cap_gradient_in_range(x, cap, shift);
            differing += __float_as_uint(any.exponent) != __float_as_uint(alone.exponent) ||
                         __float_as_uint(any.slope) != __float_as_uint(alone.slope);
          }
      EXPECT_LT(inside, 3e-5) << scale << " " << softcap;
      EXPECT_LT(beyond, 5e-7) << scale << " " << softcap;
      EXPECT_EQ(differing, 0) << scale << " " << softcap;
    }
}

TEST(CapGradient, EndsAtTheCapAndKeepsNan) {
  const CapDerivative cap = cap_derivative(0.125, 30);
  for (const float x : {kInfinity, -kInfinity, std::numeric_limits<float>::max(), 1e30f}) {
    const CapGradient end = cap_gradient(x, cap, 0);
    EXPECT_NEAR(end.exponent, (x > 0 ? 30 : -30) * kLog2e, 1e-5) << x;
    EXPECT_EQ(end.slope, 0) << x;
  }
  const CapGradient nan = cap_gradient(std::numeric_limits<float>::quiet_NaN(), cap, 0);
  EXPECT_TRUE(std::isnan(nan.exponent) && std::isnan(nan.slope));
  EXPECT_TRUE(std::isnan(cap_gradient_in_range(std::numeric_limits<float>::quiet_NaN(), cap, 0).exponent));
}

// A hidden pair in a tile that takes only the polynomial has a probability and a factor of 0 for every LSE.
TEST(CapGradient, HidesByADotProduct) {
  for (const double scale : {1e-5, 0.125, 1.0, 1e5})
    for (const double softcap : {1e-10, 1e-3, 1.0, 60.0}) {
      const CapDerivative cap = cap_derivative(scale, softcap);
      if (!(cap.exponent.limit > 0)) continue;
      for (const float shift : {-kInfinity, -1e6f, 0.0f, 90.0f}) {
        const CapGradient hidden = cap_gradient_in_range(cap.hidden, cap, shift);
        EXPECT_EQ(exp2_of(hidden.exponent), 0) << scale << " " << softcap << " " << shift;
        EXPECT_EQ(exp2_of(hidden.exponent) * hidden.slope, 0) << scale << " " << softcap << " " << shift;
      }
    }
}

// Coefficients that would overflow, or underflow: plans then choose another softmax.
TEST(CapExponent, HasNoPolynomialWhereItDoesNotFitIntoFloats) {
  for (const double scale : {1e-20, -1e-20, 1e15, 1e30}) EXPECT_EQ(cap_polynomial(scale, 1.0).limit, 0.0f) << scale;
  for (const double scale : {1e-5, -1e5}) EXPECT_GT(cap_polynomial(scale, 1.0).limit, 0.0f) << scale;
}

// The step from polynomial to exponential, in both directions of the sign.
TEST(SoftcapTanh, IsContinuousAtTheEndOfTheRange) {
  const float inside = std::nextafter(2.0f, 0.0f);
  EXPECT_NEAR(tanh_of_argument(inside), tanh_of_argument(2.0f), 4e-7);
  EXPECT_NEAR(tanh_of_argument(-inside), tanh_of_argument(-2.0f), 4e-7);
}

}  // namespace
