// The dropout decision of one (seed, offset, b, h, i, j), identical on every backend. Device compilers read this file
// too, so it includes no standard header.
//
// Two generators of the Philox family (Salmon et al., SC 2011): Philox4x32-10, keyed by the seed, on (offset, b, h)
// yields the head's stream, once per head; Philox2x32-7, keyed by the stream, on the coordinates of a group yields four
// decisions of 16 bits each. Seven rounds pass the statistical tests of that paper; each has one 32 x 32 bit product
// and one xor of three words.
//
// A group is the 2x2 block {i, i + 8} x {j, j + 8} inside a 16x16 block. A thread of a tensor core kernel holds whole
// groups of this shape both in S (queries in rows) and in its transpose, so neither orientation discards random bits.
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

// The four decisions of a group. Word 0 belongs to row i, word 1 to row i + 8; in each, the low half belongs to column
// j, the high half to column j + 8.
struct DropoutGroup {
  unsigned word[2];

  // Whether (i + 8 * second_row, j + 8 * second_column) is kept; both are 0 or 1. threshold: of dropout_threshold.
  CUFLASH_SHARED_FUNCTION bool keeps(unsigned second_row, unsigned second_column, unsigned threshold) const {
    return (second_column ? word[second_row] : word[second_row] << 16) >= threshold;
  }
};

constexpr unsigned kDropoutMultiplier = 0xD256D193u, kDropoutKeyStep = 0x9E3779B9u;
constexpr int kDropoutRounds = 7;

CUFLASH_SHARED_FUNCTION DropoutGroup philox2x32_7(unsigned key, unsigned counter0, unsigned counter1) {
  for (int round = 0; round < kDropoutRounds; ++round) {
    const unsigned long long product = 1ull * kDropoutMultiplier * counter0;
    counter0 = static_cast<unsigned>(product >> 32) ^ key ^ counter1;
    counter1 = static_cast<unsigned>(product);
    key += kDropoutKeyStep;
  }
  return {{counter0, counter1}};
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

// Group coordinate of i or j.
CUFLASH_SHARED_FUNCTION unsigned dropout_coordinate(unsigned n) { return (n / 16) * 8 + n % 8; }

// The group with these coordinates. The first product depends only on group_i, so a loop over columns need not repeat
// it.
CUFLASH_SHARED_FUNCTION DropoutGroup dropout_group_at(const DropoutStream& head, unsigned group_i, unsigned group_j) {
  return philox2x32_7(head.key, head.begin_i + group_i, head.begin_j + group_j);
}
// The group that contains (i, j).
CUFLASH_SHARED_FUNCTION DropoutGroup dropout_group(const DropoutStream& head, unsigned i, unsigned j) {
  return dropout_group_at(head, dropout_coordinate(i), dropout_coordinate(j));
}

// p in steps of 2^-16, clamped so that something is always kept. It is stored in the upper half of a word, so that
// comparing a word compares its upper half.
CUFLASH_SHARED_FUNCTION unsigned dropout_threshold(double p) {
  const double scaled = p * 65536.0 + 0.5;
  return (scaled >= 65535.0 ? 65535u : static_cast<unsigned>(scaled)) << 16;
}

CUFLASH_SHARED_FUNCTION bool dropout_keeps(const DropoutStream& head, unsigned i, unsigned j, unsigned threshold) {
  return dropout_group(head, i, j).keeps(i / 8 % 2, j / 8 % 2, threshold);
}

}  // namespace cuflash
