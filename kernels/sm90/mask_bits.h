// Bits of a mask tensor in shared memory: a TMA box of its summary for 64 queries, or for one query if all share it.
#pragma once

#include "attn/visited_tiles.h"
#include "mask_summary.h"
#include "tile/operand.h"

namespace cuflash {

// Byte of a summary's row where the box with key `key` begins.
__device__ __forceinline__ int mask_box_byte(int key) { return key / kMaskBoxKeys * kMaskBoxBytes; }

template <int kBoxBytes>
struct MaskBits {
  unsigned address;
  bool has_rows;  // false: one row for all queries

  __device__ __forceinline__ unsigned row(int query) const {
    return address + static_cast<unsigned>(has_rows ? query * kBoxBytes : 0);
  }
};

// kWords words of a row in shared memory. kAligned: they start at a multiple of as many bytes if that is a power of
// two.
template <int kWords, bool kAligned>
__device__ __forceinline__ void load_mask_words(unsigned address, unsigned* words) {
  const void* from = __cvta_shared_to_generic(address);
  if constexpr (kAligned && kWords == 4) {
    const uint4 four = *static_cast<const uint4*>(from);
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else if constexpr (kAligned && kWords == 2) {
    const uint2 two = *static_cast<const uint2*>(from);
    words[0] = two.x, words[1] = two.y;
  } else {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = static_cast<const unsigned*>(from)[w];
  }
}

// Visible pairs of a lane that holds two rows of queries, 8 apart. Bit c of a row stands for the c-th column to the
// right of the lane's first one.
template <int kTileK>
struct LaneMask {
  static constexpr int kWords = (kTileK + 31) / 32;

  unsigned words[2][kWords];

  __device__ static LaneMask all() {
    LaneMask m;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int w = 0; w < kWords; ++w) m.words[r][w] = ~0u;
    return m;
  }
  // bits: the box that has key k_first, the first key of the tile and a multiple of 16.
  __device__ __forceinline__ void load(const MaskBits<mask_box_bytes(kTileK)>& bits, int k_first, int lane_row,
                                       int lane_column) {
    constexpr bool kStartsWords = kTileK % 32 == 0;
    const int in_box = kTileK == kMaskBoxKeys ? 0 : k_first % kMaskBoxKeys;
    const int skipped = lane_column + (kStartsWords ? 0 : k_first % 32);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned row[kWords + 1];
      row[kWords] = 0;
      load_mask_words<kStartsWords ? kWords : kWords + 1, kStartsWords>(
          bits.row(lane_row + 8 * r) + static_cast<unsigned>(in_box / 32 * 4), row);
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[r][w] = __funnelshift_r(row[w], row[w + 1], skipped);
    }
  }
  // Bit mask of the columns below `end`.
  __device__ static unsigned below(int end) { return end >= 32 ? ~0u : end <= 0 ? 0u : (1u << end) - 1; }
  template <class Position>
  __device__ __forceinline__ void hide_by_position(const Position& position) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int begin = position.low + 8 * r, end = min(position.high + 8 * r, position.length);
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[r][w] &= below(end - 32 * w) & ~below(begin - 32 * w);
    }
  }
  __device__ bool sees(int r, int column) const { return (words[r][column / 32] >> (column % 32) & 1) != 0; }

  template <int kTiles>
  __device__ __forceinline__ void hide(Accumulator<float> (&s)[1][kTiles]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) s[0][n].x[x] = sees(x / 2, 8 * n + x % 2) ? s[0][n].x[x] : minus_infinity<float>();
  }
};

}  // namespace cuflash
