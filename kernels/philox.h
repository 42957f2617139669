// The dropout decision of one (seed, offset, b, h, i, j), identical on every backend. Device compilers read this file
// too, so it includes nothing.
//
// Philox4x32-10 (Salmon et al., SC 2011) is used twice: once per head, keyed by the seed, on (offset, b, h), which
// yields the 128 bits of the head's stream; then once per group of four decisions, keyed by the stream, on the group's
// coordinates.
//
// A group is the 2x2 block {i, i + 8} x {j, j + 8} inside a 16x16 block. A thread of a tensor core kernel holds whole
// groups of this shape both in S (queries in rows) and in its transpose, so neither orientation discards random words.
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

// The random stream of one head.
struct DropoutStream {
  PhiloxWords stream;
};

CUFLASH_SHARED_FUNCTION DropoutStream dropout_stream(unsigned long long seed, unsigned long long offset, unsigned b,
                                                     unsigned h) {
  return {philox4x32_10(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32),
                        {{static_cast<unsigned>(offset), static_cast<unsigned>(offset >> 32), b, h}})};
}

// Group coordinate of i or j.
CUFLASH_SHARED_FUNCTION unsigned dropout_coordinate(unsigned n) { return (n / 16) * 8 + n % 8; }

// The four words of the group of (i, j); dropout_word selects the one of (i, j).
CUFLASH_SHARED_FUNCTION PhiloxWords dropout_group(const DropoutStream& head, unsigned i, unsigned j) {
  return philox4x32_10(head.stream.word[0], head.stream.word[1],
                       {{dropout_coordinate(j), dropout_coordinate(i), head.stream.word[2], head.stream.word[3]}});
}
CUFLASH_SHARED_FUNCTION unsigned dropout_word(unsigned i, unsigned j) { return (i / 8) % 2 * 2 + (j / 8) % 2; }

// A score is kept if its word is at least this: p in steps of 2^-32, clamped so that something is always kept.
CUFLASH_SHARED_FUNCTION unsigned dropout_threshold(double p) {
  const double scaled = p * 4294967296.0 + 0.5;
  return scaled >= 4294967295.0 ? 4294967295u : static_cast<unsigned>(scaled);
}

CUFLASH_SHARED_FUNCTION bool dropout_keeps(const DropoutStream& head, unsigned i, unsigned j, unsigned threshold) {
  return dropout_group(head, i, j).word[dropout_word(i, j)] >= threshold;
}

}  // namespace cuflash
