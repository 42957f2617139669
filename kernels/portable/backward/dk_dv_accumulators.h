// dK and dV of a key tile: accumulated in registers over all queries that see it, of all heads that share it, and
// stored once.
#pragma once

#include "portable/backward/loads.h"
#include "portable/backward/operand_tile.h"
#include "portable/backward/scores.h"

namespace cuflash {

// Stores a warp's accumulators, times `factor`, to a tile.
template <Element E, int kTiles, int kColumnTiles, int kRows, int kColumns>
__device__ __forceinline__ void store_accumulators(const Accumulator<RealOf<E>> (&c)[kTiles][kColumnTiles],
                                                   Tile<E, kRows, kColumns> tile, int first_row, int first_column,
                                                   RealOf<E> factor) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int row = first_row + 16 * m + accumulator_row(), column = first_column + 8 * n + accumulator_column();
      if (column >= kColumns) continue;
      store_two<E>(tile.at(row, column), factor * c[m][n].x[0], factor * c[m][n].x[1]);
      store_two<E>(tile.at(row + 8, column), factor * c[m][n].x[2], factor * c[m][n].x[3]);
    }
}

template <BackwardConfig C>
struct DkDvAccumulators {
  using S = Shape<C>;
  using Real = typename S::Real;

  typename S::Sum dk[S::kKeyTiles][2 * S::kWarpBlocksQK];
  typename S::Sum dv[S::kKeyTiles][2 * S::kWarpBlocksV];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * S::kWarpBlocksQK; ++n) dk[m][n] = {};
#pragma unroll
      for (int n = 0; n < 2 * S::kWarpBlocksV; ++n) dv[m][n] = {};
    }
  }

  // Adds kQueries queries from first_query on; operand(m, k) returns P as A operand.
  template <int kQueries, class OperandOf>
  __device__ __forceinline__ void add_to_dv(typename S::DoutTile dout, int column_warp, int first_query,
                                            OperandOf operand) {
    accumulate_product<kQueries / S::Ops::kDepth, C.column_warps, Rows::any>(dv, dout, first_query,
                                                                             column_warp * S::kWarpBlocksV, operand);
  }
  // Adds kQueries queries with P in shared memory, without the terms whose P is 0.
  template <int kQueries>
  __device__ __forceinline__ void accumulate_selected_dv(typename S::DoutTile dout, int first_key, int column_warp,
                                                         int first_query, typename S::ScoreTile p_tile) {
    constexpr Element E = C.element;
    const int lane = new_thread_id() % 32;
    const int key = first_key + lane / 4, first_column = column_warp * S::kWarpBlocksV * 16 + lane % 4 * 2;
#pragma unroll 1
    for (int query = first_query; query < first_query + kQueries; ++query) {
      Real prob[2 * S::kKeyTiles];
#pragma unroll
      for (int r = 0; r < 2 * S::kKeyTiles; ++r) prob[r] = widen<E>(*p_tile.at(key + 8 * r, query));
#pragma unroll
      for (int n = 0; n < 2 * S::kWarpBlocksV; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = first_column + 8 * n + e;
          if (S::kWarpBlocksV * C.column_warps != S::kBlocksV && column >= C.dim_v) continue;
          const Real x = widen<E>(*dout.at(query, column));
#pragma unroll
          for (int r = 0; r < 2 * S::kKeyTiles; ++r)
            if (prob[r] != 0) dv[r / 2][n].x[r % 2 * 2 + e] += prob[r] * x;
        }
    }
  }
  template <int kQueries, Rows kRows, class OperandOf>
  __device__ __forceinline__ void add_to_dk(typename S::QTile q, int column_warp, int first_query, OperandOf operand) {
    accumulate_product<kQueries / S::Ops::kDepth, C.column_warps, kRows>(dk, q, first_query,
                                                                         column_warp * S::kWarpBlocksQK, operand);
  }

  __device__ __forceinline__ void store(const BackwardParams& p, const TaskCoord& coord, SharedTiles<C> tiles) const {
    const AttentionParams& a = p.attention;
    store_rows(p.dk, dk, tiles.k(), coord, static_cast<Real>(a.scale), a.dim_qk);
    store_rows(p.dv, dv, tiles.v(), coord, Real(1), a.dim_v);
  }

 private:
  // Goes through the shared memory of K or V, which is no longer read, so that whole rows are stored at once.
  template <int kColumnTiles, int kColumns>
  static __device__ __forceinline__ void store_rows(const RowsView& to,
                                                    const typename S::Sum (&c)[S::kKeyTiles][kColumnTiles],
                                                    Tile<C.element, C.tile_k, kColumns> tile, const TaskCoord& coord,
                                                    Real factor, int dim) {
    if (!to.data) return;
    const int first_column = S::column_warp() * kColumnTiles * 8;
    const int64 offset = offset_of(to, coord.b, coord.head_k, coord.sequence.k_begin);
    if (to.element == static_cast<int>(C.element)) {
      __syncthreads();
      store_accumulators<C.element>(c, tile, S::first_key(), first_column, factor);
      __syncthreads();
      store_tile<S::kThreads>(tile, to, offset, coord.k_first, coord.written, dim);
      return;
    }
    // The only other type of a gradient is f32.
    float* rows = static_cast<float*>(to.data) + offset + coord.k_first * to.row_stride;
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int row = S::first_key() + 16 * m + x / 2 * 8 + accumulator_row();
        float* columns = rows + row * to.row_stride;
        if (row >= coord.written) continue;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          const int column = first_column + 8 * n + accumulator_column() + x % 2;
          if (column < dim) columns[column] = static_cast<float>(factor * c[m][n].x[x]);
        }
      }
  }
};

}  // namespace cuflash
