// Makes the summary of a mask tensor (attn/mask_summary.h). A warp has 16 queries and a span of 512 keys: each lane reads
// 16 bytes of a row, so that a lane's block of 16 x 16 pairs is its own, and a ballot makes a word of blocks.
#pragma once

#include "attn/sequence.h"
#include "mask_params.h"
#include "tile/operand.h"

namespace cuflash {

// One bit for each of four bytes that is not 0, the first byte in the lowest bit.
__device__ __forceinline__ unsigned nonzero_bytes(unsigned bytes) {
  const unsigned high = (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u;
  return ((high >> 7) * 0x01020408u) >> 24;
}

template <MaskSummaryConfig C>
struct MaskSpan {
  static constexpr int kRowsAtOnce = 8;  // loads in flight

  const MaskSummaryParams& p;
  int64 head;
  int block_row, span;
  const unsigned char* mask;  // row 0 of the head
  int first_key;              // of the lane
  bool is_needed;             // some query needs some of the lane's keys

  __device__ MaskSpan(const MaskSummaryParams& p, int64 unit) : p(p) {
    const int64 row = quotient(unit, p.summary.spans);
    span = static_cast<int>(unit - row * p.summary.spans);
    const int64 block_rows = mask_block_rows(p.summary);
    head = quotient(row, block_rows);
    block_row = static_cast<int>(row - head * block_rows);
    const int64 b = quotient(head, p.heads);
    mask = static_cast<const unsigned char*>(p.mask.data) + b * p.mask.batch_stride +
           (head - b * p.heads) * p.mask.head_stride;
    first_key = span * kMaskSpan + lane_id() * kMaskBlock;
    const int first_row = block_row * kMaskBlock;
    is_needed = p.summary.rows == 1 ||
                (first_key < first_row + kMaskBlock - 1 + p.high && first_key + kMaskBlock > first_row + p.low);
  }

  // The lane's 16 keys of a row, if they all exist, as 16 bytes. Without a branch, so that loads of several rows are in
  // flight.
  __device__ __forceinline__ uint4 load_vector(int row, bool exists) const {
    uint4 bytes{};
    if (exists) bytes = *reinterpret_cast<const uint4*>(mask + row * p.mask.row_stride + first_key);
    return bytes;
  }
  __device__ __forceinline__ static unsigned bits_of(const uint4& bytes) {
    return nonzero_bytes(bytes.x) | nonzero_bytes(bytes.y) << 4 | nonzero_bytes(bytes.z) << 8 |
           nonzero_bytes(bytes.w) << 12;
  }
  // The last keys of a row, fewer than 16.
  __device__ __forceinline__ unsigned load_end(int row) const {
    const unsigned char* from = mask + row * p.mask.row_stride + first_key;
    unsigned bits = 0;
#pragma unroll 1
    for (int n = 0; first_key + n < p.keys; ++n) bits |= unsigned{from[n] != 0} << n;
    return bits;
  }
  // The same for rows of any alignment: neighbouring lanes read neighbouring bytes.
  __device__ __forceinline__ unsigned load_bytes(int row) const {
    const unsigned char* from = mask + row * p.mask.row_stride + span * kMaskSpan + lane_id();
    unsigned mine = 0;
    if (!__any_sync(0xffffffffu, is_needed)) return 0;
#pragma unroll
    for (int word = 0; word < kMaskSpanWords; ++word) {
      const bool exists = span * kMaskSpan + 32 * word + lane_id() < p.keys;
      const unsigned bits = __ballot_sync(0xffffffffu, exists && from[32 * word] != 0);
      if (lane_id() / 2 == word) mine = bits >> (lane_id() % 2 * 16) & 0xffffu;
    }
    return mine;
  }

  __device__ __forceinline__ void run() const {
    const int first_row = block_row * kMaskBlock, rows = min(kMaskBlock, p.summary.rows - first_row);
    unsigned* to = p.summary.bits + ((head * p.summary.rows + first_row) * p.summary.spans + span) * kMaskSpanWords +
                   lane_id() / 2;
    unsigned any = 0, all = 0xffffu;
#pragma unroll
    for (int first = 0; first < kMaskBlock; first += kRowsAtOnce) {
      unsigned bits[kRowsAtOnce];
      if constexpr (C.vectors != 0) {
        const bool is_whole = first_key + kMaskBlock <= p.keys;
        uint4 bytes[kRowsAtOnce];
#pragma unroll
        for (int n = 0; n < kRowsAtOnce; ++n)
          bytes[n] = load_vector(first_row + first + n, is_needed && is_whole && first + n < rows);
#pragma unroll
        for (int n = 0; n < kRowsAtOnce; ++n) bits[n] = bits_of(bytes[n]);
        if (is_needed && !is_whole)
#pragma unroll
          for (int n = 0; n < kRowsAtOnce; ++n)
            if (first + n < rows) bits[n] = load_end(first_row + first + n);
      } else {
#pragma unroll
        for (int n = 0; n < kRowsAtOnce; ++n) bits[n] = first + n < rows ? load_bytes(first_row + first + n) : 0;
      }
#pragma unroll
      for (int n = 0; n < kRowsAtOnce; ++n) {
        const unsigned upper = __shfl_xor_sync(0xffffffffu, bits[n], 1);
        if (first + n >= rows) continue;
        any |= bits[n], all &= bits[n];
        if (lane_id() % 2 == 0) to[int64{first + n} * p.summary.spans * kMaskSpanWords] = bits[n] | upper << 16;
      }
    }
    const int keys = p.keys - first_key;  // of the lane; those beyond the end hide no pair
    unsigned covers = any;
    if (!is_needed) any = covers = 0, all = 0xffffu;
    if (keys < kMaskBlock) all |= 0xffffu << max(0, keys), covers |= 0xffffu << max(0, keys);
    const unsigned any_blocks = __ballot_sync(0xffffffffu, any != 0);
    const unsigned all_blocks = __ballot_sync(0xffffffffu, (all & 0xffffu) == 0xffffu);
    const unsigned covered_blocks = __ballot_sync(0xffffffffu, (covers & 0xffffu) == 0xffffu);
    if (lane_id() != 0) return;
    unsigned* blocks =
        p.summary.blocks + (head * mask_block_rows(p.summary) + block_row) * kMaskPlanes * p.summary.spans + span;
    blocks[0] = any_blocks, blocks[p.summary.spans] = all_blocks, blocks[2 * p.summary.spans] = covered_blocks;
  }
};

template <MaskSummaryConfig C>
__device__ __forceinline__ void summarize_mask(const MaskSummaryParams& p) {
  const int64 unit = cta_number() * (num_threads(C) / 32) + static_cast<int>(threadIdx.x) / 32;
  if (unit < p.units) MaskSpan<C>(p, unit).run();
}

}  // namespace cuflash
