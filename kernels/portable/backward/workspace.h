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

template <BackwardConfig C>
__device__ __forceinline__ RealOf<C.element>* row_stats(const BackwardParams& p, int64 tile) {
  return static_cast<RealOf<C.element>*>(p.row_stats) + tile * row_stats_size(C);
}

// Offsets of a row's statistics within those of its tile. A query without visible keys stores an LSE of +inf, which
// makes its P 0 without a comparison.
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
