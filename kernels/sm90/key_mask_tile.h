// Bits of a mask tensor for 64 queries and 64 keys in shared memory, as bits of a lane's pairs (sm90/pair_bits.h).
#pragma once

#include "sm90/mask_bits.h"
#include "sm90/pair_bits.h"

namespace cuflash {

struct KeyMaskTile : MaskBits<kMaskBoxBytes> {
  // The mask bits of the 64 keys from `key` on, a multiple of 64. `boxes` is the address of consecutive boxes, and
  // `first` the first key of the first box.
  __device__ __forceinline__ KeyMaskTile(unsigned boxes, int first, int key, bool has_rows)
      : MaskBits{boxes + static_cast<unsigned>((key / kMaskBoxKeys - first / kMaskBoxKeys) * kMaskBitsBytes +
                                               key % kMaskBoxKeys / 8),
                 has_rows} {}

  // Visible pairs of a lane whose rows are keys. A lane loads two queries for the 16 keys of its warp, one byte per
  // half of the keys and query. Eight lanes have the same queries of each 8; a transposition among them gives every
  // lane its own keys.
  __device__ __forceinline__ unsigned pairs_of_keys(int thread) const {
    const int lane = thread % 32, warp = thread / 32 % 4, key = lane / 4, query = 8 * key + lane % 4 * 2;
    const auto load = [&](int q) -> unsigned {
      return *static_cast<const unsigned short*>(__cvta_shared_to_generic(row(q) + warp * 2));
    };
    unsigned bits = load(query) | load(query + 1) << 16;
#pragma unroll
    for (int n = 4; n > 0; n /= 2) {
      const unsigned low = n == 4 ? 0x0f0f0f0fu : n == 2 ? 0x33333333u : 0x55555555u;
      const unsigned other = __shfl_xor_sync(0xffffffffu, bits, 4 * n);
      bits = (key & n) == 0 ? (bits & low) | (other << n & ~low) : (bits & ~low) | (other >> n & low);
    }
    return __byte_perm(bits, 0, 0x3120);
  }
  // Visible pairs of a lane whose rows are queries.
  __device__ __forceinline__ unsigned pairs_of_queries(int thread) const {
    const int query = thread / 32 % 4 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    unsigned bits = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint2 words = *static_cast<const uint2*>(__cvta_shared_to_generic(row(query + 8 * r)));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // Bit n of the sum is the bit of column 8 n + e.
        const auto gather = [&](unsigned word) { return (word >> (column + e) & 0x01010101u) * 0x01020408u >> 24; };
        bits |= (gather(words.x) | gather(words.y) << 4) << (16 * r + 8 * e);
      }
    }
    return bits;
  }
};

}  // namespace cuflash
