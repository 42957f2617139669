// One bit for each pair of a lane in 64 columns of a wgmma accumulator: which pairs are visible, and which ones dropout
// keeps. Bit 16 r + 8 e + n stands for element e of tile n in the lane's row r = 0, 1 (rows 8 apart).
#pragma once

#include "philox.h"

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

// The pairs that dropout keeps. row, column: of the lane's first pair within the sequence. A lane holds whole groups of
// dropout decisions, whether its rows are queries or keys.
template <bool kQueriesAreRows>
__device__ __forceinline__ unsigned kept_pairs(const DropoutStream& stream, unsigned threshold, int row, int column) {
  const unsigned group_row = dropout_coordinate(static_cast<unsigned>(row)),
                 group_column = dropout_coordinate(static_cast<unsigned>(column));
  unsigned kept = 0;
#pragma unroll
  for (int n = 0; n < 8; n += 2)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const DropoutGroup group = kQueriesAreRows ? dropout_group_at(stream, group_row, group_column + n / 2 * 8 + e)
                                                 : dropout_group_at(stream, group_column + n / 2 * 8 + e, group_row);
#pragma unroll
      for (int half = 0; half < 4; ++half) {
        const int second_query = half / 2, second_key = half % 2;
        if (group.keeps(second_query, second_key, threshold))
          kept |=
              kQueriesAreRows ? pair_bit(second_query, n + second_key, e) : pair_bit(second_key, n + second_query, e);
      }
    }
  return kept;
}

}  // namespace cuflash
