// Bits of a lane's pairs (kernels/sm90/pair_bits.h), compiled for the host: the columns that a mask by position leaves,
// and the decisions of dropout with queries or keys as rows.
#define cuflash host_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "sm90/mask_bits.h"
#include "sm90/pair_bits.h"
// clang-format on
#undef cuflash

#include <gtest/gtest.h>

#include <span>

namespace host_kernels {
alignas(1024) unsigned char memory[(size_t{228} << 10) + 128];  // shared
}

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
    const auto drawn = [&](unsigned lane) { return dropout_bits_of_keys(stream, rule, row(lane), column(lane)); };
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

// Rows of a box of 128 keys, or of two where key tiles straddle them. A tile of 80 keys may begin at any multiple of 16.
template <int kTileK>
void expect_bits_of_tiles() {
  constexpr int kBytes = mask_box_bytes(kTileK), kRows = 64, kTiles = 40;
  const std::span<unsigned char> box(memory, kRows * kBytes);
  for (int tile = 0; tile < kTiles; ++tile) {
    unsigned seed = static_cast<unsigned>(kTileK * 1000 + tile);
    for (unsigned char& byte : box) seed = seed * 1664525 + 1013904223, byte = static_cast<unsigned char>(seed >> 24);
    const int k_first = tile * kTileK, first = kTileK == kMaskBoxKeys ? 0 : k_first % kMaskBoxKeys;
    for (const int lane : {0, 5, 31}) {
      const int row = lane / 4, column = lane % 4 * 2;
      LaneMask<kTileK> mask;
      mask.load({shared_address(memory), true}, k_first, row, column);
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c + column < kTileK; ++c) {
          const int bit = first + column + c;
          const bool shown = (box[(row + 8 * r) * kBytes + bit / 8] >> bit % 8 & 1) != 0;
          ASSERT_EQ(mask.sees(r, c), shown)
              << kTileK << " keys, tile " << tile << ", lane " << lane << ", column " << c;
        }
    }
  }
}
TEST(MaskBits, AreThoseOfTheTile) {
  expect_bits_of_tiles<16>(), expect_bits_of_tiles<48>(), expect_bits_of_tiles<64>(), expect_bits_of_tiles<80>();
  expect_bits_of_tiles<96>(), expect_bits_of_tiles<112>(), expect_bits_of_tiles<128>();
}

}  // namespace
