// The bias in shared memory: tiles that TMA has loaded, read in the layout of a lane's scores.
#pragma once

#include "attn/tile_scores.h"
#include "tile/swizzled.h"

namespace cuflash {

// The bias of two adjacent tiles of 8 columns, with the interface of GlobalBiasMaskPair. Elements outside of the tensor
// are 0, and lengths hide them.
template <Element E>
struct BiasTilePair {
  unsigned bias_words[4];  // 2 * tile + r, two columns each

  __device__ __forceinline__ float bias(int tile, int r, int e) const {
    const unsigned word = bias_words[2 * tile + r];
    if constexpr (E == Element::bf16) return __uint_as_float(e == 0 ? word << 16 : word & 0xffff0000u);
    else return widen<E>(static_cast<unsigned short>(e == 0 ? word : word >> 16));
  }
};

// The bias of a warpgroup's 64 rows. If it is broadcast over the queries it has one row in shared memory.
template <Element E, class BiasTile>
struct BiasTileReader {
  const AttentionParams& a;
  BiasTile bias;
  LaneCoord lane;

  // The bias of tiles n and n + 1 of row tile m = 0.
  __device__ __forceinline__ BiasTilePair<E> pair(int, int n) const {
    BiasTilePair<E> pair;
    const bool rows = a.bias.row_stride != 0;
    ldmatrix_x4(bias.lane_address(rows ? a_row() : 0, a_byte(), rows ? lane.row / 16 * 16 : 0, n * 8), pair.bias_words);
    return pair;
  }
};

}  // namespace cuflash
