// f16 and bf16 conversions against a slow definition: the nearest value of the table of all representable values, ties
// to the even pattern. The table is made from exponent and fraction in double, where every value and every midpoint of
// both formats is exact.
#include "numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtype.h"

namespace cuflash {
namespace {

class Format {
 public:
  Format(std::string name, DType type, int fraction_bits, int bias, float (*widen)(uint16_t), uint16_t (*narrow)(float))
      : name(std::move(name)), type(type), widen(widen), narrow(narrow), fraction_bits_(fraction_bits), bias_(bias) {
    for (uint32_t pattern = 0; pattern <= infinity(); ++pattern) magnitudes_.push_back(magnitude(pattern));
  }

  uint32_t infinity() const { return 0x7fffu >> fraction_bits_ << fraction_bits_; }
  uint32_t quiet_bit() const { return 1u << (fraction_bits_ - 1); }

  // The magnitude of a pattern without sign. Infinity stands for the first power of two beyond the largest finite value,
  // the number that IEEE 754 rounds against.
  double magnitude(uint32_t pattern) const {
    const int exponent = static_cast<int>(pattern >> fraction_bits_);
    const int fraction = static_cast<int>(pattern & ((1u << fraction_bits_) - 1u));
    if (exponent == 0) return std::ldexp(fraction, 1 - bias_ - fraction_bits_);
    return std::ldexp(fraction + (1 << fraction_bits_), exponent - bias_ - fraction_bits_);
  }

  uint16_t nearest(double value) const {
    const uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
    const double size = std::fabs(value);
    const auto above = std::upper_bound(magnitudes_.begin(), magnitudes_.end(), size);
    if (above == magnitudes_.end()) return static_cast<uint16_t>(sign | infinity());
    const uint32_t low = static_cast<uint32_t>(above - magnitudes_.begin()) - 1u;
    const double middle = (magnitudes_[low] + magnitudes_[low + 1]) / 2;
    const bool up = size > middle || (size == middle && low % 2 == 1);
    return static_cast<uint16_t>(sign | (low + (up ? 1u : 0u)));
  }

  // Between each representable value and the next, the last being between the largest finite one and infinity.
  std::vector<double> midpoints() const {
    std::vector<double> middles;
    for (size_t p = 0; p + 1 < magnitudes_.size(); ++p) middles.push_back((magnitudes_[p] + magnitudes_[p + 1]) / 2);
    return middles;
  }

  std::string name;
  DType type;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);

 private:
  int fraction_bits_, bias_;
  std::vector<double> magnitudes_;
};

class Numeric : public testing::TestWithParam<Format> {
 protected:
  // Both signs of a value that is not NaN. Counts, because an EXPECT for each of millions of values is slow.
  void narrow_float(float value) {
    for (const float signed_value : {value, -value}) tally(signed_value, GetParam().narrow(signed_value));
  }
  void narrow_double(double value) {
    for (const double signed_value : {value, -value}) {
      uint16_t bits = 0;
      store_row(&bits, GetParam().type, 0, 1, &signed_value);
      tally(signed_value, bits);
    }
  }
  void TearDown() override { EXPECT_EQ(wrong_, 0) << "of " << checked_ << " values; the first: " << first_; }

 private:
  void tally(double value, uint16_t got) {
    ++checked_;
    const uint16_t want = GetParam().nearest(value);
    if (got == want || wrong_++ > 0) return;
    char text[96];
    std::snprintf(text, sizeof text, "%a became %04x, nearest is %04x", value, unsigned{got}, unsigned{want});
    first_ = text;
  }
  int64_t checked_ = 0, wrong_ = 0;
  std::string first_ = "none";
};

TEST_P(Numeric, EveryPatternWidensToItsValue) {
  const Format& format = GetParam();
  for (uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const uint32_t size = pattern & 0x7fffu;
    const float value = format.widen(static_cast<uint16_t>(pattern));
    ASSERT_EQ(std::signbit(value), pattern >= 0x8000u) << pattern;
    if (size > format.infinity()) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
    } else if (size == format.infinity()) {
      ASSERT_TRUE(std::isinf(value)) << pattern;
    } else {
      ASSERT_EQ(std::fabs(double{value}), format.magnitude(size)) << pattern;
    }
  }
}

TEST_P(Numeric, EveryPatternSurvivesWideningAndNarrowing) {
  const Format& format = GetParam();
  for (uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const bool is_nan = (pattern & 0x7fffu) > format.infinity();
    const uint32_t want = is_nan ? pattern | format.quiet_bit() : pattern;
    ASSERT_EQ(format.narrow(format.widen(static_cast<uint16_t>(pattern))), want) << pattern;
  }
}

TEST_P(Numeric, TiesGoToEvenAndTheirNeighboursDoNot) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const double middle : GetParam().midpoints()) {
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(double{tie}, middle) << "the test needs midpoints that float can hold";
    narrow_float(tie);
    narrow_float(std::nextafter(tie, 0.0f));
    narrow_float(std::nextafter(tie, infinity));
  }
}

TEST_P(Numeric, NarrowsAGridOverAllFloatsToTheNearest) {
  // An odd prime step visits every exponent and a different set of low bits in each.
  for (uint64_t bits = 0; bits <= 0x7f800000u; bits += 1009)
    narrow_float(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (const float edge : {std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                           std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::infinity()})
    narrow_float(edge);
}

TEST_P(Numeric, NansStayNansWhateverTheirPayload) {
  for (uint32_t bit = 0; bit < 23; ++bit) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan = std::bit_cast<float>(sign | 0x7f800000u | (1u << bit));
      const uint32_t bits = GetParam().narrow(nan);
      EXPECT_GT(bits & 0x7fffu, GetParam().infinity()) << "payload bit " << bit;
      EXPECT_EQ(bits & 0x8000u, sign >> 16) << "payload bit " << bit;
      uint16_t stored = 0;
      const double wide = nan;
      store_row(&stored, GetParam().type, 0, 1, &wide);
      EXPECT_GT(stored & 0x7fffu, GetParam().infinity()) << "payload bit " << bit;
    }
  }
}

// A double next to a tie becomes that tie if it is rounded to float first, and then rounds to the wrong side.
TEST_P(Numeric, DoublesAreRoundedOnce) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double middle : GetParam().midpoints()) {
    narrow_double(middle);
    for (const double toward : {0.0, infinity}) {
      narrow_double(std::nextafter(middle, toward));
      narrow_double(middle * (toward == 0 ? 1 - 0x1p-30 : 1 + 0x1p-30));
    }
  }
}

TEST_P(Numeric, DoublesOfEverySizeGoToTheNearest) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> fraction(1, 2);
  for (int exponent = -1074; exponent < 1024; ++exponent)
    for (int n = 0; n < 100; ++n) narrow_double(std::ldexp(fraction(random), exponent));
  for (const double edge : {0.0, std::numeric_limits<double>::max(), std::numeric_limits<double>::denorm_min(),
                            std::numeric_limits<double>::infinity()})
    narrow_double(edge);
}

INSTANTIATE_TEST_SUITE_P(Formats, Numeric,
                         testing::Values(Format("f16", DType::f16, 10, 15, f16_to_float, float_to_f16),
                                         Format("bf16", DType::bf16, 7, 127, bf16_to_float, float_to_bf16)),
                         [](const auto& instance) { return instance.param.name; });

TEST(Rows, StoreAndLoadMoveExactlyTheRowAskedFor) {
  const std::vector<float> row = {1.5f, -2.0f, 0.25f};  // exact in every type
  for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const size_t size = static_cast<size_t>(size_of(type));
    std::vector<unsigned char> memory(7 * size, 0xa5);
    store_row(memory.data(), type, 2, 3, row.data());
    for (size_t byte = 0; byte < 2 * size; ++byte) {
      EXPECT_EQ(memory[byte], 0xa5) << name_of(type) << " byte " << byte;
      EXPECT_EQ(memory[5 * size + byte], 0xa5) << name_of(type) << " byte " << 5 * size + byte;
    }
    std::vector<double> back(3);
    load_row(memory.data(), type, 2, 3, back.data());
    EXPECT_EQ(back, std::vector<double>(row.begin(), row.end())) << name_of(type);
    EXPECT_EQ(load_element(memory.data(), type, 3), -2.0) << name_of(type);
  }
}

TEST(Rows, IntegersAndBoolsWiden) {
  const std::vector<int32_t> lengths = {0, -7, std::numeric_limits<int32_t>::max()};
  EXPECT_EQ(load_element(lengths.data(), DType::i32, 1), -7.0);
  EXPECT_EQ(load_element(lengths.data(), DType::i32, 2), 2147483647.0);
  const std::vector<uint8_t> visible = {0, 1, 255};
  EXPECT_EQ(load_element(visible.data(), DType::boolean, 0), 0.0);
  EXPECT_EQ(load_element(visible.data(), DType::boolean, 2), 1.0);
}

TEST(Types, KnownOnesHaveASizeAndANameAndOthersAreUnknown) {
  for (int32_t number = -1; number <= 8; ++number) {
    const DType type = static_cast<DType>(number);
    const bool known = number >= CUFLASH_F64 && number <= CUFLASH_BOOL;
    EXPECT_EQ(is_known(type), known) << number;
    EXPECT_EQ(is_float(type), known && number <= CUFLASH_BF16) << number;
    EXPECT_EQ(std::string(name_of(type)) == "unknown", !known) << number;
  }
}

}  // namespace
}  // namespace cuflash
