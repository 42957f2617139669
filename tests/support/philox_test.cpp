// The dropout decision: the generator against its published answers, then what the rest of the library relies on.
#include "philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

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

unsigned word_of(const DropoutStream& head, unsigned i, unsigned j) {
  return dropout_group(head, i, j).word[dropout_word(i, j)];
}

// A saved (seed, offset) has to give the same mask in the next version and on the next backend. The numbers come from a
// separate implementation of the two steps that philox.h describes.
TEST(Dropout, DecisionsNeverChangeBetweenVersions) {
  EXPECT_EQ(word_of(dropout_stream(0, 0, 0, 0), 0, 0), 0xcb63db8cu);
  EXPECT_EQ(word_of(dropout_stream(1, 0, 0, 0), 0, 0), 0x0c507a6eu);
  EXPECT_EQ(word_of(dropout_stream(42, 7, 1, 3), 5, 9), 0x77d2a862u);
  EXPECT_EQ(word_of(dropout_stream(42, 7, 1, 3), 13, 9), 0x7b54a9b4u);
  EXPECT_EQ(word_of(dropout_stream(0x123456789abcdef0u, 0xfedcba9876543210u, 65536, 31), 1000003, 77), 0xf33a237cu);
}

TEST(Dropout, EveryPairHasAWordOfItsOwn) {
  const DropoutStream head = dropout_stream(3, 4, 5, 6);
  std::set<unsigned> words;
  for (unsigned i = 0; i < 48; ++i)
    for (unsigned j = 0; j < 48; ++j) words.insert(word_of(head, i, j));
  // 2,304 draws out of 2^32 collide with probability 6e-4; this seed has none.
  EXPECT_EQ(words.size(), 48u * 48u);
}

TEST(Dropout, AGroupIsTwoByTwoPairsEightApart) {
  const DropoutStream head = dropout_stream(3, 4, 5, 6);
  const unsigned threshold = dropout_threshold(0.5);
  for (unsigned i = 0; i < 40; ++i) {
    for (unsigned j = 0; j < 40; ++j) {
      const unsigned first_i = i / 16 * 16 + i % 8, first_j = j / 16 * 16 + j % 8;
      const PhiloxWords group = dropout_group(head, first_i, first_j);
      const unsigned place = (i != first_i ? 2u : 0u) + (j != first_j ? 1u : 0u);
      EXPECT_EQ(dropout_keeps(head, i, j, threshold), group.word[place] >= threshold) << i << ", " << j;
    }
  }
}

TEST(Dropout, ThresholdsAtTheEdges) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(1e-16), 0u);
  EXPECT_EQ(dropout_threshold(0x1p-32), 1u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(1 - 0x1p-32), 0xffffffffu);
  EXPECT_EQ(dropout_threshold(1 - 1e-12), 0xffffffffu);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 0xffffffffu);
}

using Visit = std::function<void(unsigned i, unsigned j)>;
constexpr unsigned kSide = 1024;
void for_each_pair(const Visit& visit) {
  for (unsigned i = 0; i < kSide; ++i)
    for (unsigned j = 0; j < kSide; ++j) visit(i, j);
}

// How many standard deviations `count` hits out of kSide^2 independent tries are away from what `probability` predicts.
double deviations(int64_t count, double probability) {
  const double tries = double{kSide} * kSide;
  return std::fabs(static_cast<double>(count) - tries * probability) /
         std::sqrt(tries * probability * (1 - probability));
}

TEST(Dropout, KeepsTheShareItIsAskedFor) {
  const DropoutStream head = dropout_stream(11, 0, 2, 1);
  for (const double p : {0.01, 0.1, 0.5, 0.9, 0.999}) {
    const unsigned threshold = dropout_threshold(p);
    int64_t kept = 0;
    for_each_pair([&](unsigned i, unsigned j) { kept += dropout_keeps(head, i, j, threshold); });
    EXPECT_LT(deviations(kept, 1 - p), 4.5) << "p = " << p << ", kept " << kept;
  }
  int64_t kept = 0;
  for_each_pair([&](unsigned i, unsigned j) { kept += dropout_keeps(head, i, j, dropout_threshold(0)); });
  EXPECT_EQ(kept, int64_t{kSide} * kSide);
}

// Two independent masks agree in half of the pairs at p = 0.5.
void expect_unrelated(const DropoutStream& one, const DropoutStream& other, unsigned step_i, unsigned step_j,
                      const char* what) {
  const unsigned threshold = dropout_threshold(0.5);
  int64_t agree = 0;
  for_each_pair([&](unsigned i, unsigned j) {
    agree += dropout_keeps(one, i, j, threshold) == dropout_keeps(other, i + step_i, j + step_j, threshold);
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

}  // namespace
}  // namespace cuflash
