// The dropout decision of one (seed, offset, b, h, i, j), identical on every backend. Device compilers read this file
// too, so it includes no standard header.
//
// Two generators of the Philox family (Salmon et al., SC 2011): Philox4x32-10, keyed by the seed, on (offset, b, h)
// yields the head's stream, once per head; Philox2x32-7, keyed by the stream, on the coordinates of a group yields
// eight decisions of 16 bits each. Seven rounds pass the statistical tests of that paper, and each is one 32 x 32 bit
// product and one xor of three words.
//
// A group is the block {i, i + 8} x {j, j + 1, j + 8, j + 9} of even j inside a 16x16 block: the elements that a thread
// of a tensor core kernel holds of S with queries in rows. Of the transpose it holds half of each group, and a
// neighbouring lane holds the other half.
#pragma once

#include "shared_function.h"

namespace cuflash {

constexpr unsigned kPhiloxMultiplier0 = 0xD2511F53u, kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr unsigned kPhiloxKeyStep0 = 0x9E3779B9u, kPhiloxKeyStep1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 10;

struct PhiloxWords {
  unsigned word[4];
};

CUFLASH_SHARED_FUNCTION PhiloxWords philox4x32_10(unsigned key0, unsigned key1, PhiloxWords counter) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const unsigned long long product0 = 1ull * kPhiloxMultiplier0 * counter.word[0];
    const unsigned long long product1 = 1ull * kPhiloxMultiplier1 * counter.word[2];
    counter = {{static_cast<unsigned>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<unsigned>(product1),
                static_cast<unsigned>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<unsigned>(product0)}};
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return counter;
}

// The eight decisions of a group. Word 0 belongs to row i, word 1 to row i + 8; in each, bytes 0 to 3 belong to columns
// j, j + 1, j + 8 and j + 9. `low` holds these words as they were two rounds earlier: their bytes extend the 8 bits to
// 16, which matters to one decision in 256. The words one round earlier would not do: byte 0 of one of them determines
// byte 0 of word 1, and its byte 3 is correlated with byte 3 of word 0.
struct DropoutGroup {
  unsigned word[2], low[2];

  // The 16 bits that decide about a row, 0 or 1, and a column, 0 to 3.
  CUFLASH_SHARED_FUNCTION unsigned window(unsigned row, unsigned column) const {
    return (word[row] >> 8 * column & 0xff) << 8 | (low[row] >> 8 * column & 0xff);
  }
};

constexpr unsigned kDropoutMultiplier = 0xD256D193u, kDropoutKeyStep = 0x9E3779B9u;
constexpr int kDropoutRounds = 7, kLowRounds = 5;

CUFLASH_SHARED_FUNCTION DropoutGroup philox2x32_7(unsigned key, unsigned counter0, unsigned counter1) {
  DropoutGroup group{};
  for (int round = 0; round < kDropoutRounds; ++round) {
    if (round == kLowRounds) group.low[0] = counter0, group.low[1] = counter1;
    const unsigned long long product = 1ull * kDropoutMultiplier * counter0;
    counter0 = static_cast<unsigned>(product >> 32) ^ key ^ counter1;
    counter1 = static_cast<unsigned>(product);
    key += kDropoutKeyStep;
  }
  group.word[0] = counter0, group.word[1] = counter1;
  return group;
}

// The random stream of one head: the key, and the first counter of its groups. Counters of two heads with equal keys
// overlap only if their first counters are close, which 96 random bits make practically impossible.
struct DropoutStream {
  unsigned key, begin_i, begin_j;
};

CUFLASH_SHARED_FUNCTION DropoutStream dropout_stream(unsigned long long seed, unsigned long long offset, unsigned b,
                                                     unsigned h) {
  const PhiloxWords words = philox4x32_10(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32),
                                          {{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), b, h}});
  return {words.word[0], words.word[1], words.word[2]};
}

// Coordinates of the group that contains (i, j), and the place of (i, j) within it.
CUFLASH_SHARED_FUNCTION unsigned dropout_group_row(unsigned i) { return i / 16 * 8 + i % 8; }
CUFLASH_SHARED_FUNCTION unsigned dropout_group_column(unsigned j) { return j / 16 * 4 + j % 8 / 2; }
CUFLASH_SHARED_FUNCTION unsigned dropout_row(unsigned i) { return i / 8 % 2; }
CUFLASH_SHARED_FUNCTION unsigned dropout_column(unsigned j) { return j / 8 % 2 * 2 + j % 2; }

// The group with these coordinates. The first product depends on the row alone, so that a loop over columns need not
// repeat it.
CUFLASH_SHARED_FUNCTION DropoutGroup dropout_group_at(const DropoutStream& head, unsigned group_row,
                                                      unsigned group_column) {
  return philox2x32_7(head.key, head.begin_i + group_row, head.begin_j + group_column);
}
CUFLASH_SHARED_FUNCTION DropoutGroup dropout_group(const DropoutStream& head, unsigned i, unsigned j) {
  return dropout_group_at(head, dropout_group_row(i), dropout_group_column(j));
}

// Windows are compared in the order of bf16 numbers, which a GPU compares two at a time: from -inf up to inf, then NaN.
// -0 comes before 0.
CUFLASH_SHARED_FUNCTION unsigned dropout_rank(unsigned window) {
  return (window < 0x8000 ? window + 0x7f81 : 0xff80 - window) & 0xffff;
}

// Which windows are kept: those whose rank is at least `bound` or, if inverted is ~0 instead of 0, those below it.
struct DropoutRule {
  unsigned bound, inverted;
  unsigned bf16x2;  // the number of rank `bound`, twice

  CUFLASH_SHARED_FUNCTION bool keeps(unsigned window) const {
    return (dropout_rank(window) >= bound) != (inverted != 0);
  }
  CUFLASH_SHARED_FUNCTION bool drops_any() const { return bound != 0; }
};

// How many of the 2^16 windows are dropped: p, rounded to steps of 2^-16 and below 1, so that something is always kept.
CUFLASH_SHARED_FUNCTION unsigned dropped_windows(double p) {
  const double scaled = p * 65536.0 + 0.5;
  return scaled >= 65535.0 ? 65535u : static_cast<unsigned>(scaled);
}
// The bound must be the rank of a number other than 0, because 0 compares equal to -0. This decides from which side
// ranks are counted.
CUFLASH_SHARED_FUNCTION DropoutRule dropout_rule(double p) {
  constexpr unsigned kZero = 0x7f81, kAll = 0x10000;
  const unsigned dropped = dropped_windows(p);
  const bool inverts = dropped == kZero || dropped > kAll - kZero;
  const unsigned bound = inverts ? kAll - dropped : dropped;
  const unsigned number = bound < kZero ? 0xff80 - bound : bound - kZero;
  return {bound, inverts ? ~0u : 0u, number * 0x10001u};
}

CUFLASH_SHARED_FUNCTION bool dropout_keeps(const DropoutStream& head, unsigned i, unsigned j, const DropoutRule& rule) {
  return rule.keeps(dropout_group(head, i, j).window(dropout_row(i), dropout_column(j)));
}

}  // namespace cuflash
