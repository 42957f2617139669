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

// The step from polynomial to exponential, in both directions of the sign.
TEST(SoftcapTanh, IsContinuousAtTheEndOfTheRange) {
  const float inside = std::nextafter(2.0f, 0.0f);
  EXPECT_NEAR(tanh_of_argument(inside), tanh_of_argument(2.0f), 4e-7);
  EXPECT_NEAR(tanh_of_argument(-inside), tanh_of_argument(-2.0f), 4e-7);
}

}  // namespace
