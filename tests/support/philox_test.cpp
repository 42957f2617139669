// The dropout decision: the generator against its published answers, then what the rest of the library relies on.
#include "philox.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

namespace cuflash {
namespace {

struct KnownAnswer {
  PhiloxWords counter;
  unsigned key0, key1;
  PhiloxWords expected;
};

TEST(Philox, GivesTheKnownAnswersOfItsPaper) {
  const KnownAnswer answers[] = {
      {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}},
      {{{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}},
      {{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
       0xa4093822u,
       0x299f31d0u,
       {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}},
  };
  for (const KnownAnswer& answer : answers) {
    const PhiloxWords words = philox4x32_10(answer.key0, answer.key1, answer.counter);
    for (int n = 0; n < 4; ++n) EXPECT_EQ(words.word[n], answer.expected.word[n]) << "word " << n;
  }
}

TEST(Philox, TheShortGeneratorGivesTheKnownAnswersOfItsPaper) {
  const unsigned answers[][5] = {
      {0, 0, 0, 0x257a3673u, 0xcd26be2au},
      {~0u, ~0u, ~0u, 0xab302c4du, 0x3dc9d239u},
      {0x13198a2eu, 0x243f6a88u, 0x85a308d3u, 0xbedbbe6bu, 0xe4c770b3u},
  };
  for (const auto& [key, counter0, counter1, expected0, expected1] : answers) {
    const DropoutGroup group = philox2x32_7(key, counter0, counter1);
    EXPECT_EQ(group.word[0], expected0);
    EXPECT_EQ(group.word[1], expected1);
  }
}

// The 16 bits that decide about (i, j).
unsigned bits_of(const DropoutStream& head, unsigned i, unsigned j) {
  return dropout_group(head, i, j).window(dropout_row(i), dropout_column(j));
}

// A saved (seed, offset) has to give the same mask in the next version and on the next backend. The numbers come from a
// separate implementation of the two steps that philox.h describes.
TEST(Dropout, DecisionsNeverChangeBetweenVersions) {
  EXPECT_EQ(bits_of(dropout_stream(0, 0, 0, 0), 0, 0), 0xb5ecu);
  EXPECT_EQ(bits_of(dropout_stream(1, 0, 0, 0), 0, 0), 0x237bu);
  EXPECT_EQ(bits_of(dropout_stream(42, 7, 1, 3), 5, 8), 0x302bu);
  EXPECT_EQ(bits_of(dropout_stream(42, 7, 1, 3), 5, 9), 0x3333u);
  EXPECT_EQ(bits_of(dropout_stream(42, 7, 1, 3), 13, 9), 0x7766u);
  EXPECT_EQ(bits_of(dropout_stream(42, 7, 1, 3), 13, 1), 0x8057u);
  EXPECT_EQ(bits_of(dropout_stream(0x123456789abcdef0u, 0xfedcba9876543210u, 65536, 31), 1000003, 77), 0x2ebau);
}

// A second implementation of the function that does not use the header.
unsigned written_out(const DropoutStream& head, uint64_t i, uint64_t j) {
  const uint64_t two32 = uint64_t{1} << 32;
  uint64_t a = (head.begin_i + i / 16 * 8 + i % 8) % two32, b = (head.begin_j + j / 16 * 4 + j % 8 / 2) % two32;
  uint64_t low = 0;
  for (uint64_t round = 0; round < 7; ++round) {
    if (round == 5) low = i % 16 < 8 ? a : b;
    const uint64_t product = a * 0xD256D193u;
    a = product / two32 ^ (head.key + round * 0x9E3779B9u) % two32 ^ b;
    b = product % two32;
  }
  uint64_t word = i % 16 < 8 ? a : b;
  for (uint64_t column = j % 2 + j % 16 / 8 * 2; column > 0; --column) word /= 256, low /= 256;
  return static_cast<unsigned>(word % 256 * 256 + low % 256);
}

TEST(Dropout, AgreesWithASecondImplementation) {
  for (unsigned n = 0; n < 20000; ++n) {
    const DropoutStream head = dropout_stream(n % 7, n % 5, n % 3, n % 11);
    const unsigned i = n * 2654435761u >> n % 32, j = n * 2246822519u >> n % 29;
    ASSERT_EQ(bits_of(head, i, j), written_out(head, i, j)) << i << ", " << j;
  }
}

TEST(Dropout, EveryGroupHasBitsOfItsOwn) {
  const DropoutStream head = dropout_stream(3, 4, 5, 6);
  std::set<std::pair<unsigned, unsigned>> words;
  for (unsigned i = 0; i < 96; ++i)
    for (unsigned j = 0; j < 96; ++j) {
      const DropoutGroup group = dropout_group(head, i, j);
      words.insert({group.word[0], group.word[1]});
    }
  EXPECT_EQ(words.size(), 48u * 24u);  // counters differ and the generator is a bijection
}

TEST(Dropout, AGroupIsTwoRowsByTwoPairsOfColumnsEightApart) {
  const DropoutStream head = dropout_stream(3, 4, 5, 6);
  const DropoutRule rule = dropout_rule(0.5);
  for (unsigned i = 0; i < 40; ++i)
    for (unsigned j = 0; j < 40; ++j) {
      const unsigned first_i = i / 16 * 16 + i % 8, first_j = j / 16 * 16 + j % 8 / 2 * 2;
      const DropoutGroup group = dropout_group(head, first_i, first_j);
      const unsigned distance = j - first_j, column = distance / 8 * 2 + distance % 8;
      EXPECT_EQ(dropout_keeps(head, i, j, rule), rule.keeps(group.window(i != first_i, column))) << i << ", " << j;
    }
}

TEST(Dropout, AWindowIsAByteOfEachWordOfItsRow) {
  const DropoutGroup group{{0x33221100u, 0x77665544u}, {0xbbaa9988u, 0xffeeddccu}};
  const unsigned windows[2][4] = {{0x0088, 0x1199, 0x22aa, 0x33bb}, {0x44cc, 0x55dd, 0x66ee, 0x77ff}};
  for (unsigned row = 0; row < 2; ++row)
    for (unsigned column = 0; column < 4; ++column) EXPECT_EQ(group.window(row, column), windows[row][column]);
}

TEST(Dropout, ThresholdsAtTheEdges) {
  EXPECT_EQ(dropped_windows(0), 0u);
  EXPECT_EQ(dropped_windows(1e-16), 0u);
  EXPECT_EQ(dropped_windows(0.99 * 0x1p-17), 0u);
  EXPECT_EQ(dropped_windows(0x1p-17), 1u);
  EXPECT_EQ(dropped_windows(0x1p-16), 1u);
  EXPECT_EQ(dropped_windows(0.1), 6554u);
  EXPECT_EQ(dropped_windows(0.5), 32768u);
  EXPECT_EQ(dropped_windows(1 - 0x1p-16), 65535u);
  EXPECT_EQ(dropped_windows(1 - 1e-12), 65535u);
  EXPECT_EQ(dropped_windows(std::nextafter(1.0, 0.0)), 65535u);
  EXPECT_FALSE(dropout_rule(0.99 * 0x1p-17).drops_any());
  EXPECT_TRUE(dropout_rule(0x1p-17).drops_any());
  EXPECT_TRUE(dropout_rule(std::nextafter(1.0, 0.0)).drops_any());
}

float bf16_number(unsigned bits) { return std::bit_cast<float>(bits << 16); }

// Exactly the share that p says is kept of the 65,536 values of a window, for every p in steps of 2^-16. The comparison
// is that of bf16 numbers, in which -0 equals 0, and NaN is not less than anything.
TEST(Dropout, TheKeptShareIsExactToItsSteps) {
  std::vector<unsigned> ranks(65536);
  for (unsigned window = 0; window < 65536; ++window) ++ranks[dropout_rank(window)];
  for (const unsigned count : ranks) ASSERT_EQ(count, 1u);
  for (unsigned dropped = 0; dropped < 65536; ++dropped) {
    const DropoutRule rule = dropout_rule(dropped * 0x1p-16);
    const float bound = bf16_number(rule.bf16x2 & 0xffff);
    ASSERT_EQ(rule.bf16x2 >> 16, rule.bf16x2 & 0xffff);
    // Almost all p are decided by the same two ranges of windows as their neighbours; the others are counted.
    const bool counted = dropped % 509 == 0 || dropped < 3 || dropped > 65532 || (dropped > 0x7f7c && dropped < 0x8086);
    if (!counted) continue;
    unsigned kept = 0;
    for (unsigned window = 0; window < 65536; ++window) {
      const bool compared = !(bf16_number(window) < bound);
      ASSERT_EQ(rule.keeps(window), compared != (rule.inverted != 0)) << dropped << ", " << window;
      kept += rule.keeps(window);
    }
    ASSERT_EQ(kept, 65536 - dropped);
  }
  for (const double p : {1e-5, 0.001, 0.01, 0.1, 1.0 / 3, 0.4981, 0.5, 0.50196, 0.9, 0.999})
    EXPECT_LE(std::fabs(dropped_windows(p) * 0x1p-16 - p), 0x1p-17) << "p = " << p;
}

using Visit = std::function<void(unsigned i, unsigned j)>;
constexpr unsigned kSide = 1024;
void for_each_pair(const Visit& visit) {
  for (unsigned i = 0; i < kSide; ++i)
    for (unsigned j = 0; j < kSide; ++j) visit(i, j);
}

// The distance, in standard deviations, of `count` hits in kSide^2 independent tries from what `probability` predicts.
double deviations(int64_t count, double probability) {
  const double tries = double{kSide} * kSide;
  return std::fabs(static_cast<double>(count) - tries * probability) /
         std::sqrt(tries * probability * (1 - probability));
}

TEST(Dropout, KeepsTheShareItIsAskedFor) {
  const DropoutStream head = dropout_stream(11, 0, 2, 1);
  for (const double p : {0.01, 0.1, 0.4981, 0.5, 0.9, 0.999}) {
    const DropoutRule rule = dropout_rule(p);
    int64_t kept = 0;
    for_each_pair([&](unsigned i, unsigned j) { kept += dropout_keeps(head, i, j, rule); });
    EXPECT_LT(deviations(kept, 1 - p), 4.5) << "p = " << p << ", kept " << kept;
  }
  int64_t kept = 0;
  for_each_pair([&](unsigned i, unsigned j) { kept += dropout_keeps(head, i, j, dropout_rule(0)); });
  EXPECT_EQ(kept, int64_t{kSide} * kSide);
}

// Two independent masks agree in half of the pairs at p = 0.5.
void expect_unrelated(const DropoutStream& one, const DropoutStream& other, unsigned step_i, unsigned step_j,
                      const char* what) {
  const DropoutRule rule = dropout_rule(0.5);
  int64_t agree = 0;
  for_each_pair([&](unsigned i, unsigned j) {
    agree += dropout_keeps(one, i, j, rule) == dropout_keeps(other, i + step_i, j + step_j, rule);
  });
  EXPECT_LT(deviations(agree, 0.5), 4.5) << what << ": agree " << agree;
}

TEST(Dropout, EveryPartOfTheNameOfAHeadChangesItsMask) {
  const uint64_t high_bit = uint64_t{1} << 32;  // must not be truncated
  const DropoutStream head = dropout_stream(5, 6, 7, 8);
  const std::pair<const char*, DropoutStream> others[] = {
      {"seed", dropout_stream(6, 6, 7, 8)},    {"high seed", dropout_stream(5 + high_bit, 6, 7, 8)},
      {"offset", dropout_stream(5, 7, 7, 8)},  {"high offset", dropout_stream(5, 6 + high_bit, 7, 8)},
      {"batch", dropout_stream(5, 6, 8, 8)},   {"head", dropout_stream(5, 6, 7, 9)},
      {"swapped", dropout_stream(5, 6, 8, 7)}, {"seed and offset swapped", dropout_stream(6, 5, 7, 8)},
  };
  for (const auto& [what, other] : others) expect_unrelated(head, other, 0, 0, what);
}

TEST(Dropout, NeighboursInARowAColumnAndAGroupAreUnrelated) {
  const DropoutStream head = dropout_stream(5, 6, 7, 8);
  for (const unsigned step : {1u, 8u, 16u, 64u}) {
    expect_unrelated(head, head, step, 0, "down a column");
    expect_unrelated(head, head, 0, step, "along a row");
    expect_unrelated(head, head, step, step, "diagonal");
  }
}

// Deviation of counts from equal shares: chi-square of many cells is nearly normal, with mean and half the variance
// equal to the degrees of freedom.
double chi_square_deviations(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  const double expected = static_cast<double>(total) / static_cast<double>(counts.size());
  double chi_square = 0;
  for (const int64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    chi_square += difference * difference / expected;
  }
  const double freedom = static_cast<double>(counts.size() - 1);
  return (chi_square - freedom) / std::sqrt(2 * freedom);
}

TEST(Dropout, BitsAreUniform) {
  for (const unsigned h : {0u, 1u, 31u}) {
    const DropoutStream head = dropout_stream(17, 3, 0, h);
    std::vector<int64_t> all(65536), place[8];
    for (auto& counts : place) counts.resize(1024);
    for_each_pair([&](unsigned i, unsigned j) {
      const unsigned bits = bits_of(head, i, j);
      ++all[bits];
      ++place[dropout_row(i) * 4 + dropout_column(j)][bits >> 6];
    });
    EXPECT_LT(std::fabs(chi_square_deviations(all)), 4.5);
    for (const auto& counts : place) EXPECT_LT(std::fabs(chi_square_deviations(counts)), 4.5);
  }
}

// The joint distribution of two decisions: of their upper bits, which decide at an ordinary p, and of their lower ones.
void expect_independent(const DropoutStream& one, const DropoutStream& other, unsigned step_i, unsigned step_j,
                        const char* what) {
  std::vector<int64_t> upper(4096), lower(4096);
  double products = 0;
  for_each_pair([&](unsigned i, unsigned j) {
    const unsigned x = bits_of(one, i, j), y = bits_of(other, i + step_i, j + step_j);
    ++upper[(x >> 10) * 64 + (y >> 10)];
    ++lower[x % 64 * 64 + y % 64];
    products += (x - 32767.5) * (y - 32767.5);
  });
  EXPECT_LT(std::fabs(chi_square_deviations(upper)), 4.5) << what << ", step " << step_i << ", " << step_j;
  EXPECT_LT(std::fabs(chi_square_deviations(lower)), 4.5) << what << ", step " << step_i << ", " << step_j;
  // The product of two uniform values has the square of their variance, 65536^2 / 12, as its own.
  const double deviation = products / (65536.0 * 65536.0 / 12) / kSide;
  EXPECT_LT(std::fabs(deviation), 4.5) << what << ", step " << step_i << ", " << step_j;
}

TEST(Dropout, DecisionsAreIndependent) {
  const DropoutStream head = dropout_stream(5, 6, 7, 8);
  for (const unsigned step : {1u, 2u, 8u, 16u, 128u}) {
    expect_independent(head, head, step, 0, "down a column");
    expect_independent(head, head, 0, step, "along a row");
    expect_independent(head, head, step, step, "diagonal");
  }
  const std::pair<const char*, DropoutStream> others[] = {{"next head", dropout_stream(5, 6, 7, 9)},
                                                          {"next entry", dropout_stream(5, 6, 8, 8)},
                                                          {"next offset", dropout_stream(5, 7, 7, 8)},
                                                          {"next seed", dropout_stream(6, 6, 7, 8)}};
  for (const auto& [what, other] : others) expect_independent(head, other, 0, 0, what);
  // Heads whose streams differ in one word only, as chance may have it.
  expect_independent(head, {head.key + 1, head.begin_i, head.begin_j}, 0, 0, "next key");
  expect_independent(head, {head.key, head.begin_i + kSide, head.begin_j}, 0, 0, "next counter of rows");
  expect_independent(head, {head.key, head.begin_i, head.begin_j + kSide}, 0, 0, "next counter of columns");
}

// Decisions of a group share random bits. Any two of them, and any two of groups side by side, are both kept as often as
// independent ones are. What windows with the same lower byte have in common is less than this can see: 2^-18 at most.
TEST(Dropout, DecisionsOfNeighbouringGroupsAreIndependent) {
  const DropoutStream head = dropout_stream(21, 22, 23, 24);
  constexpr unsigned kRows = 2048, kColumns = 512;  // groups
  for (const double p : {0.05, 0.1, 0.4981, 0.9}) {
    const DropoutRule rule = dropout_rule(p);
    const auto decisions = [&](unsigned row, unsigned column) {
      const DropoutGroup group = dropout_group_at(head, row, column);
      unsigned bits = 0;
      for (unsigned n = 0; n < 8; ++n) bits |= unsigned{rule.keeps(group.window(n / 4, n % 4))} << n;
      return bits;
    };
    std::vector<int64_t> pairs[3];  // within a group, and with the next one to the right and below
    for (auto& counts : pairs) counts.resize(65536);
    std::vector<unsigned> above(kColumns), now(kColumns);
    for (unsigned row = 0; row < kRows; ++row, above = now)
      for (unsigned column = 0; column < kColumns; ++column) {
        now[column] = decisions(row, column);
        ++pairs[0][now[column] << 8 | now[column]];
        if (column > 0) ++pairs[1][now[column - 1] << 8 | now[column]];
        if (row > 0) ++pairs[2][above[column] << 8 | now[column]];
      }
    const double kept = 1 - dropped_windows(p) * 0x1p-16;
    double squares = 0;
    int tests = 0;
    for (const auto& counts : pairs)
      for (unsigned one = 0; one < 8; ++one)
        for (unsigned other = 0; other < 8; ++other) {
          if (&counts == &pairs[0] && other <= one) continue;
          double total = 0, product = 0;
          for (unsigned value = 0; value < 65536; ++value) {
            const double x = (value >> 8 >> one & 1) - kept, y = (value >> other & 1) - kept;
            total += static_cast<double>(counts[value]), product += static_cast<double>(counts[value]) * x * y;
          }
          const double deviation = product / (kept * (1 - kept) * std::sqrt(total));
          EXPECT_LT(std::fabs(deviation), 4.5) << "p = " << p << ": " << one << ", " << other;
          squares += deviation * deviation, ++tests;
        }
    EXPECT_NEAR(squares / tests, 1, 0.5) << "p = " << p;
  }
}

}  // namespace
}  // namespace cuflash
