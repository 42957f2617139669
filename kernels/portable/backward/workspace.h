// Workspace layout of backward: indices of query tiles, their row statistics and their dq_accum.
#pragma once

#include "attn/sequence.h"
#include "backward_params.h"
#include "ptx/global.h"
#include "tile/operand.h"

namespace cuflash {

// Dense: every head has tiles for all rows of the tensor. Packed: sequence b starts at tile q_begin / tile_q + b of a
// head, which leaves space for the incomplete last tile of every sequence.
template <BackwardConfig C>
__device__ __forceinline__ int64 query_tile(const BackwardParams& p, const Sequence& s, int b, int h, int64 tile) {
  const AttentionParams& a = p.attention;
  if (a.cu_q) return h * p.packed_tiles + s.q_begin / C.tile_q + b + tile;
  return (int64{b} * a.heads_q + h) * tiles_in(a.len_q, C.tile_q) + tile;
}

// Index of the tile of dk_accum and dv_accum for 64 keys of a KV head, numbered as query tiles are.
constexpr int kSumKeys = 64;
__device__ __forceinline__ int64 key_tile(const BackwardParams& p, const Sequence& s, int b, int h, int64 tile) {
  const AttentionParams& a = p.attention;
  if (a.cu_k) return h * p.packed_key_tiles + s.k_begin / kSumKeys + b + tile;
  return (int64{b} * a.heads_k + h) * tiles_in(a.len_k, kSumKeys) + tile;
}

// A tile of `rows` rows in the numbering above.
struct RowTile {
  int b, h, tile;
};

// The sequence that tile `index` of a head of packed tensors belongs to. Every warp searches with all of its lanes: one
// round for 32 sequences, two for 1,024.
__device__ __forceinline__ int sequence_of_tile(const int* cu, int64 total, int batch, int64 index, int rows) {
#pragma unroll 1
  for (int first = 0, count = batch;;) {
    const int step = (count + 31) / 32, b = first + lane_id() * step;
    const bool before = b < first + count && clamped(cu[b], 0, total) / rows + b <= index;
    const int n = max(1, __popc(__ballot_sync(0xffffffffu, before)));
    first += (n - 1) * step, count = min(step, count - (n - 1) * step);
    if (step == 1) return first;
  }
}
// Tile n of all heads. cu: null for dense tensors; packed_tiles: per head of packed ones.
__device__ __forceinline__ RowTile row_tile(const int* cu, int64 total, int64 packed_tiles, int batch, int heads,
                                            int len, int rows, int64 n) {
  if (cu) {
    const int64 h = quotient(n, packed_tiles), index = n - h * packed_tiles;
    const int b = sequence_of_tile(cu, total, batch, index, rows);
    return {b, static_cast<int>(h), static_cast<int>(index - clamped(cu[b], 0, total) / rows - b)};
  }
  const int64 tiles = tiles_in(len, rows), head = quotient(n, tiles), b = quotient(head, heads);
  return {static_cast<int>(b), static_cast<int>(head - b * heads), static_cast<int>(n - head * tiles)};
}
template <BackwardConfig C>
__device__ __forceinline__ RowTile query_tile_at(const BackwardParams& p, int64 n) {
  const AttentionParams& a = p.attention;
  return row_tile(a.cu_q, a.total_q, p.packed_tiles, a.batch, a.heads_q, a.len_q, C.tile_q, n);
}
// Number of query tiles, and of tiles of 64 keys.
template <BackwardConfig C>
__device__ __forceinline__ int64 num_query_tiles(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  return a.heads_q * (a.cu_q ? p.packed_tiles : tiles_in(a.len_q, C.tile_q) * a.batch);
}
__device__ __forceinline__ int64 num_key_tiles(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  return a.heads_k * (a.cu_k ? p.packed_key_tiles : tiles_in(a.len_k, kSumKeys) * a.batch);
}

template <BackwardConfig C>
__device__ __forceinline__ RealOf<C.element>* row_stats(const BackwardParams& p, int64 tile) {
  return static_cast<RealOf<C.element>*>(p.row_stats) + tile * row_stats_size(C);
}

// Offsets of a row's statistics within the statistics of its tile. A query without visible keys stores an LSE of +inf,
// which makes its P 0 without a comparison.
constexpr int lse_at(const BackwardConfig&, int row) { return row; }
constexpr int delta_at(const BackwardConfig& c, int row) { return c.tile_q + row; }
constexpr int flag_at(const BackwardConfig& c) { return 2 * c.tile_q; }
// LSE is stored in units of log2, unless it is so large that the product with log2(e) would be inexact or infinite;
// such an LSE is stored as it is. large_at: whether the tile has such rows. large_rows_at: one bit per row.
constexpr int large_at(const BackwardConfig& c) { return 2 * c.tile_q + 1; }
constexpr float kLargeLse = 1 << 20;
constexpr int large_rows_at(const BackwardConfig& c) { return 2 * c.tile_q + 2; }  // two words

template <BackwardConfig C>
__device__ __forceinline__ RealOf<C.element>* dq_accum(const BackwardParams& p, int64 tile) {
  return static_cast<RealOf<C.element>*>(p.dq_accum) + tile * (p.dq_rows * C.dim_qk);
}

// The elements of a 16x8 accumulator are contiguous, so that a warp adds to 512 contiguous bytes. The four elements of
// a lane are adjacent if one red.v4 adds them, and 32 apart if four instructions do.
template <BackwardConfig C>
__device__ __forceinline__ int accum_block(int row, int column) {
  return (row / 16 * (C.dim_qk / 8) + column / 8) * 128;
}
template <class Real>
__device__ __forceinline__ Accumulator<Real> load_block(const Real* block, int lane) {
  Accumulator<Real> c;
  if constexpr (kAddsFour && sizeof(Real) == 4) {
    const float4 four = *reinterpret_cast<const float4*>(block + lane * 4);
    c.x[0] = four.x, c.x[1] = four.y, c.x[2] = four.z, c.x[3] = four.w;
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n) c.x[n] = block[n * 32 + lane];
  }
  return c;
}
__device__ __forceinline__ void store_block(float* block, int lane, const Accumulator<float>& c) {
  *reinterpret_cast<float4*>(block + lane * 4) = {c.x[0], c.x[1], c.x[2], c.x[3]};
}
template <class Real>
__device__ __forceinline__ void add_block(Real* block, int lane, const Accumulator<Real>& c, bool adds) {
  if constexpr (kAddsFour && sizeof(Real) == 4) {
    add_four_to_global(block + lane * 4, c.x, adds);
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n) add_to_global(block + n * 32 + lane, c.x[n], adds);
  }
}

}  // namespace cuflash
