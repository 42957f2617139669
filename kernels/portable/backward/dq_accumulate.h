// dQ of a query tile: adds the contribution dS K of a key tile to dq_accum in the workspace.
#pragma once

#include "portable/backward/dq_order.h"
#include "portable/backward/loads.h"
#include "portable/backward/scores.h"

namespace cuflash {

template <BackwardConfig C, Rows kRows>
__device__ __forceinline__ void add_to_dq(const BackwardParams& p, const TaskCoord& coord, SharedTiles<C> tiles,
                                          int member, int tile) {
  using S = Shape<C>;
  using Ops = typename S::Ops;
  constexpr int kSteps = C.tile_k / Ops::kDepth;
  // With all_gradients each 16 columns are added as soon as they are complete, while the next are computed: global
  // atomics are slow.
  constexpr int kBlocks = C.all_gradients ? 1 : S::kDqBlocks;
  const int thread = new_thread_id(), warp = thread / 32;
  const int first_row = warp % S::kRowWarps * S::kDqRows * 16, first_block = warp / S::kRowWarps * S::kDqBlocks;
  const auto load = [&](int m, int step) {
    return Ops::load_a_transposed(tiles.ds(), step * Ops::kDepth, first_row + 16 * m);
  };
  typename Ops::A kept[S::kDqRows][kSteps];
  if constexpr (kBlocks < S::kDqBlocks)
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int m = 0; m < S::kDqRows; ++m) kept[m][step] = load(m, step);
  const auto ds_operand = [&](int m, int step) {
    if constexpr (kBlocks < S::kDqBlocks) return kept[m][step];
    else return load(m, step);
  };

  const int64 number = coord.query_tile(member, tile);
  auto* accum = dq_accum<C>(p, number) + accum_block<C>(first_row, first_block * 16);
#pragma unroll
  for (int block = 0; block < S::kDqBlocks; block += kBlocks) {
    typename S::Sum dq[S::kDqRows][2 * kBlocks];
#pragma unroll
    for (int m = 0; m < S::kDqRows; ++m)
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n) dq[m][n] = {};
    accumulate_product<kSteps, S::kColumnWarps * S::kDqBlocks / kBlocks, kRows>(dq, tiles.k(), 0, first_block + block,
                                                                                ds_operand);
    wait_dq_semaphore<C>(p, coord, number, tile, thread, [] { __syncthreads(); });
#pragma unroll
    for (int m = 0; m < S::kDqRows; ++m)
#pragma unroll
      for (int n = 0; n < 2 * kBlocks; ++n)
        if (S::kDqBlocks * S::kColumnWarps == S::kBlocksQK || (first_block + block) * 16 + n * 8 < C.dim_qk)
          add_block(accum + accum_block<C>(16 * m, (block * 2 + n) * 8), thread % 32, dq[m][n],
                    first_row + 16 * m < p.dq_rows);
  }
  release_dq_semaphore<C>(p, number, thread, [] { __syncthreads(); });
}

}  // namespace cuflash
