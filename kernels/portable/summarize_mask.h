// Makes the summary of a mask tensor (mask_summary.h). A warp processes 16 queries and a span of 512 keys. Each
// lane reads 16 bytes of a row, so that it has a block of 16 x 16 pairs to itself, and a ballot makes a word of blocks.
#pragma once

#include "attn/sequence.h"
#include "mask_params.h"
#include "ptx/grid.h"
#include "tile/operand.h"

namespace cuflash {

// Sets the high bit of each byte that is not 0.
__device__ __forceinline__ unsigned nonzero_bytes(unsigned bytes) {
  return (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u;
}

template <MaskSummaryConfig C>
struct MaskSpan {
  const MaskSummaryParams& p;
  int64 head;
  int block_row, span;
  const unsigned char* mask;  // row 0 of the head
  int first_key;              // first key of the lane
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

  // One bit for each byte that is not 0, the first byte in the lowest bit. Dot products gather the high bits of eight
  // bytes in bits 7 to 14.
  __device__ __forceinline__ static unsigned bits_of(const uint4& bytes) {
    constexpr unsigned kFirstFour = 0x08040201u, kLastFour = 0x80402010u;
    const unsigned low = __dp4a(nonzero_bytes(bytes.y), kLastFour, __dp4a(nonzero_bytes(bytes.x), kFirstFour, 0u));
    const unsigned high = __dp4a(nonzero_bytes(bytes.w), kLastFour, __dp4a(nonzero_bytes(bytes.z), kFirstFour, 0u));
    return low >> 7 | high << 1;
  }
  // Loads the lane's 16 keys of all rows, if all of them exist. There is no branch between the loads, so several are in
  // flight. The mask is read only once and does not evict other data from L2.
  __device__ __forceinline__ void load_vectors(int first_row, int rows, unsigned (&bits)[kMaskBlock]) const {
    const unsigned char* from = mask + first_row * p.mask.row_stride + first_key;
    uint4 bytes[kMaskBlock];
#pragma unroll
    for (int n = 0; n < kMaskBlock; ++n)
      bytes[n] = __ldcs(reinterpret_cast<const uint4*>(from + min(n, rows - 1) * p.mask.row_stride));
#pragma unroll
    for (int n = 0; n < kMaskBlock; ++n) bits[n] = bits_of(bytes[n]);
  }
  // Loads the last keys of a row, fewer than 16.
  __device__ __forceinline__ unsigned load_end(int row) const {
    const unsigned char* from = mask + row * p.mask.row_stride + first_key;
    unsigned bits = 0;
#pragma unroll 1
    for (int n = 0; first_key + n < p.keys; ++n) bits |= unsigned{from[n] != 0} << n;
    return bits;
  }
  // Loads the keys of a row of any alignment: neighbouring lanes read neighbouring bytes.
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
    unsigned any = 0, all = 0xffffu, bits[kMaskBlock] = {};
    if constexpr (C.vectors == 0) {
#pragma unroll 4
      for (int n = 0; n < kMaskBlock; ++n) bits[n] = n < rows ? load_bytes(first_row + n) : 0;
    } else if (is_needed && first_key + kMaskBlock <= p.keys) {
      load_vectors(first_row, rows, bits);
    } else if (is_needed) {
#pragma unroll
      for (int n = 0; n < kMaskBlock; ++n)
        if (n < rows) bits[n] = load_end(first_row + n);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kMaskBlock; ++n) {
      const unsigned upper = __shfl_xor_sync(0xffffffffu, bits[n], 1);
      if (n >= rows) continue;
      any |= bits[n], all &= bits[n];
      if (lane_id() % 2 == 0) to[int64{n} * p.summary.spans * kMaskSpanWords] = bits[n] | upper << 16;
    }
    const int keys = p.keys - first_key;  // existing keys from the lane's first on; keys beyond the end hide no pair
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
  griddepcontrol_launch_dependents();  // a kernel that lists tiles waits for the end of this one
  const int64 unit = cta_number() * (num_threads(C) / 32) + static_cast<int>(threadIdx.x) / 32;
  if (unit < p.units) MaskSpan<C>(p, unit).run();
}

}  // namespace cuflash
