// Bits of a lane's pairs (kernels/sm90/pair_bits.h), compiled for the host: the columns that a mask by position leaves,
// and the decisions of dropout with queries or keys as rows.
#define cuflash host_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "sm90/pair_bits.h"
// clang-format on
#undef cuflash

#include <gtest/gtest.h>

namespace {

using namespace host_kernels;

template <class Function>
void for_pairs(Function&& function) {
  for (int r = 0; r < 2; ++r)
    for (int n = 0; n < 8; ++n)
      for (int e = 0; e < 2; ++e) function(r, n, e);
}

TEST(PairBits, AreDifferentBits) {
  unsigned all = 0;
  for_pairs([&](int r, int n, int e) {
    EXPECT_EQ(all & pair_bit(r, n, e), 0u);
    all |= pair_bit(r, n, e);
  });
  EXPECT_EQ(all, ~0u);
}

TEST(PairBits, OfColumnsBetweenBounds) {
  for (int begin = -70; begin < 70; ++begin)
    for (int end = -70; end < 70; ++end) {
      const unsigned bits = columns_between(begin, end);
      for (int n = 0; n < 8; ++n)
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * n + e;
          EXPECT_EQ((bits & pair_bit(0, n, e)) != 0, column >= begin && column < end) << begin << " " << end;
        }
      EXPECT_EQ(bits >> 16, 0u);
    }
}

TEST(PairBits, OfDropoutAreItsDecisions) {
  const DropoutStream stream = dropout_stream(17, 4, 2, 3);
  for (const double p : {0.1, 0.4981, 0.7}) {
    const DropoutRule rule = dropout_rule(p);
    const auto row = [](unsigned lane) { return static_cast<int>(160 + lane / 4); };
    const auto column = [](unsigned lane) { return static_cast<int>(64 + lane % 4 * 2); };
    const auto drawn = [&](unsigned lane) { return drawn_pairs_of_keys(stream, rule, row(lane), column(lane)); };
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned of_queries = kept_pairs_of_queries(stream, rule, row(lane), column(lane));
      const unsigned of_keys = drawn(lane).joined(drawn(lane ^ 4).other, rule, row(lane));
      for_pairs([&](int r, int n, int e) {
        const auto i = static_cast<unsigned>(row(lane) + 8 * r), j = static_cast<unsigned>(column(lane) + 8 * n + e);
        EXPECT_EQ((of_queries & pair_bit(r, n, e)) != 0, dropout_keeps(stream, i, j, rule));
        EXPECT_EQ((of_keys & pair_bit(r, n, e)) != 0, dropout_keeps(stream, j, i, rule));
      });
    }
  }
}

}  // namespace
