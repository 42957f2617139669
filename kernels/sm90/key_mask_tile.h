// A tile of the mask tensor in shared memory, as bits of a lane's pairs (sm90/pair_bits.h).
#pragma once

#include "ptx/matrix.h"
#include "sm90/pair_bits.h"

namespace cuflash {

// A tile of the mask tensor in shared memory: 64 queries by 64 keys, one byte per pair, in the 64-byte swizzle of TMA
// (16-byte pieces are permuted by XOR with row / 2 % 4).
struct KeyMaskTile {
  static constexpr int kBytes = 64 * 64;
  unsigned address;
  bool has_rows;  // false: one row for all queries

  __device__ __forceinline__ unsigned piece(int query, int piece) const {
    const int row = has_rows ? query : 0;
    return address + row * 64 + (piece ^ row / 2 % 4) * 16;
  }

  // Visible pairs of a lane whose rows are keys. A transposed matrix of 16-bit elements gives a lane two neighbouring
  // keys of its queries; it gets its own keys, which are 8 apart, from the two lanes that have them.
  __device__ __forceinline__ unsigned pairs_of_keys(int thread) const {
    const int lane = thread % 32, warp = thread / 32 % 4, key = lane / 4;
    unsigned bits = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned four[4];
      ldmatrix_x4_trans(piece(32 * half + lane, warp), four);
#pragma unroll
      for (int n = 0; n < 4; ++n) bits |= nonzero_bytes(four[n]) << (4 * half + n);
    }
    const unsigned first = __shfl_sync(0xffffffffu, bits, key / 2 * 4 + lane % 4),
                   second = __shfl_sync(0xffffffffu, bits, (key / 2 + 4) * 4 + lane % 4);
    return __byte_perm(first, second, key % 2 == 0 ? 0x6420 : 0x7531);
  }
  // The same for a lane whose rows are queries.
  __device__ __forceinline__ unsigned pairs_of_queries(int thread) const {
    const int row = thread / 32 % 4 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    unsigned bits = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const unsigned two = *static_cast<const unsigned short*>(
            __cvta_shared_to_generic(piece(row + 8 * r, n / 2) + n % 2 * 8 + column));
        bits |= nonzero_bytes(two) << (16 * r + n);
      }
    return bits;
  }
};

}  // namespace cuflash
