// One bit for each pair of a lane in 64 columns of a wgmma accumulator: which pairs are visible, and which ones dropout
// keeps. Bit 16 r + 8 e + n stands for element e of tile n in the lane's row r = 0, 1 (rows 8 apart).
#pragma once

#include "sm90/kept_halves.h"

namespace cuflash {

constexpr unsigned pair_bit(int r, int n, int e) { return 1u << (16 * r + 8 * e + n); }

// Bits of row 0 for columns below `end`, which counts from the lane's first column.
__device__ __forceinline__ unsigned columns_below(int end) {
  const auto tiles = [](int columns) { return max(0, min((columns + 7) >> 3, 8)); };
  return ((1u << tiles(end)) - 1) | ((1u << tiles(end - 1)) - 1) << 8;
}
// Bits of row 0 for columns in [begin, end).
__device__ __forceinline__ unsigned columns_between(int begin, int end) {
  return columns_below(end) & ~columns_below(begin);
}

// The pairs that dropout keeps where queries are rows. row, column: the lane's first pair, within the sequence.
__device__ __forceinline__ unsigned kept_pairs_of_queries(const DropoutStream& stream, const DropoutRule& rule, int row,
                                                          int column) {
  const unsigned group_row = dropout_group_row(static_cast<unsigned>(row)),
                 group_column = dropout_group_column(static_cast<unsigned>(column));
  unsigned kept[2] = {};  // rows; e is the half
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const DropoutGroup group = dropout_group_at(stream, group_row, group_column + n / 2 * 4);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      kept[r] |= compared_halves(group, rule, r, window_bytes(n % 2 * 2, n % 2 * 2 + 1)) & 0x10001u << n;
  }
  return __byte_perm(kept[0], kept[1], 0x6420) ^ rule.inverted;
}

// Dropout bits where keys are rows. The lane four away, whose keys are one row away, holds the other half of the lane's
// groups. Each of the two lanes draws the groups of every other query for both: `own` has the pairs of this lane,
// `other` those of the partner.
struct DropoutPairBits {
  unsigned own, other;

  // received: `other` of the partner.
  __device__ __forceinline__ unsigned joined(unsigned received, const DropoutRule& rule, int row) const {
    return (row % 2 == 0 ? own | received << 8 : own << 8 | received) ^ rule.inverted;
  }
};
__device__ __forceinline__ DropoutPairBits dropout_bits_of_keys(const DropoutStream& stream, const DropoutRule& rule,
                                                                int row, int column) {
  const unsigned odd = static_cast<unsigned>(row) % 2;
  const unsigned group_row = dropout_group_row(static_cast<unsigned>(column) + odd),
                 group_column = dropout_group_column(static_cast<unsigned>(row));
  const unsigned even_bytes = window_bytes(0, 2), odd_bytes = window_bytes(1, 3);
  DropoutPairBits drawn{};  // rows are halves
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const DropoutGroup group = dropout_group_at(stream, group_row + n / 2 * 8, group_column);
#pragma unroll
    for (int second = 0; second < 2; ++second) {
      const unsigned bits = 0x10001u << (n + second);
      drawn.own |= compared_halves(group, rule, second, odd ? odd_bytes : even_bytes) & bits;
      drawn.other |= compared_halves(group, rule, second, odd ? even_bytes : odd_bytes) & bits;
    }
  }
  return drawn;
}
// The pairs that dropout keeps where keys are rows. Called by a whole warp, in which lane l has the key l / 4 rows
// after a multiple of 8.
__device__ __forceinline__ unsigned kept_pairs_of_keys(const DropoutStream& stream, const DropoutRule& rule, int row,
                                                       int column) {
  const DropoutPairBits drawn = dropout_bits_of_keys(stream, rule, row, column);
  return drawn.joined(__shfl_xor_sync(0xffffffffu, drawn.other, 4), rule, row);
}

}  // namespace cuflash
