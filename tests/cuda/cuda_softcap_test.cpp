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
