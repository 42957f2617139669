// Bias and mask tensor in shared memory: tiles that TMA has loaded, read in the layout of a lane's scores.
#pragma once

#include "attn/tile_scores.h"
#include "tile/swizzled.h"

namespace cuflash {

// Mask bytes of 64 queries, as TMA writes them in its 64-byte or 128-byte swizzle: 16-byte pieces are permuted by XOR
// with address bits 7 and above, so that eight rows of a piece fall into different banks.
template <int kRowBytes>
struct MaskTile {
  static constexpr int kBytes = kWarpgroupRows * kRowBytes;
  static constexpr unsigned kSwizzle = kRowBytes == 128 ? 0x70 : 0x30;

  unsigned address;

  __device__ __forceinline__ unsigned at(int row, int column) const {
    const unsigned offset = static_cast<unsigned>(row * kRowBytes + column);
    return address + (offset ^ (offset >> 3 & kSwizzle));
  }
};

__device__ __forceinline__ unsigned load_shared_u16(unsigned address) {
  return *static_cast<const unsigned short*>(__cvta_shared_to_generic(address));
}

// As GlobalTermPair. Elements that no tensor has are 0, and lengths hide them.
template <Element E>
struct TilePair {
  unsigned bias_words[4];  // 2 * tile + r, two columns each
  unsigned mask_words[4];

  __device__ __forceinline__ float bias(int tile, int r, int e) const {
    const unsigned word = bias_words[2 * tile + r];
    if constexpr (E == Element::bf16) return __uint_as_float(e == 0 ? word << 16 : word & 0xffff0000u);
    else return widen<E>(static_cast<unsigned short>(e == 0 ? word : word >> 16));
  }
  __device__ __forceinline__ bool unmasked(int tile, int r, int e) const {
    return (mask_words[2 * tile + r] & (e == 0 ? 0xffu : 0xff00u)) != 0;
  }
};

// Terms of a warpgroup's 64 rows. A tensor that is not in shared memory is loaded element by element. A tensor that is
// broadcast over the queries has one row in shared memory.
template <Sm90ForwardConfig C, class Options, class BiasTile, class MaskTile>
struct TileTerms {
  static constexpr bool kBiasTile = (C.schedule & kTmaBias) != 0, kMaskTile = (C.schedule & kTmaMask) != 0;

  GlobalTerms<Options> global;
  BiasTile bias;
  MaskTile mask;
  LaneCoord lane;

  struct Pair {
    GlobalTermPair<Options> global;
    TilePair<C.element> tile;

    __device__ __forceinline__ float bias(int t, int r, int e) const {
      if constexpr (kBiasTile) return tile.bias(t, r, e);
      else return global.bias(t, r, e);
    }
    __device__ __forceinline__ bool unmasked(int t, int r, int e) const {
      if constexpr (kMaskTile) return tile.unmasked(t, r, e);
      else return global.unmasked(t, r, e);
    }
  };

  // The lane's row of a 64-row tile, for ldmatrix; row 0 if there is only that.
  __device__ __forceinline__ Pair pair(int m, int n) const {
    Pair pair{global.pair(m, n), {}};
    const AttentionParams& a = global.options.a;
    if constexpr (kBiasTile) {
      const bool rows = a.bias.row_stride != 0;
      ldmatrix_x4(bias.lane_address(rows ? a_row() : 0, a_byte(), rows ? lane.row / 16 * 16 : 0, n * 8),
                  pair.tile.bias_words);
    }
    if constexpr (kMaskTile) {
      const bool rows = a.mask.row_stride != 0;
#pragma unroll
      for (int x = 0; x < 4; ++x)
        pair.tile.mask_words[x] =
            load_shared_u16(mask.at(rows ? lane.row + x % 2 * 8 : 0, (n + x / 2) * 8 + lane.column));
    }
    return pair;
  }
};

}  // namespace cuflash
