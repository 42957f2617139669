// dQ = scale * sums, in the type and the order of the caller's tensor; 0 beyond the lengths of padded tensors.
#pragma once

#include "backward/workspace.h"
#include "tile/eight.h"

namespace cuflash {

template <BackwardConfig C>
__device__ __forceinline__ void finish_tile(const BackwardParams& p, int b, int h, int tile) {
  using Real = RealOf<C.element>;
  constexpr int kThreads = finish_threads(C), kEights = C.dim_qk / 8;
  const AttentionParams& a = p.attention;
  const Sequence s = sequence_of(a, b);
  const int first = tile * C.tile_q, written = min(C.tile_q, (a.cu_q ? s.len_q : a.len_q) - first);
  if (written <= 0) return;
  const Real* sums = dq_sums<C>(p, query_tile<C>(p, s, b, h, tile));
  const Real scale = static_cast<Real>(a.scale);
  const int64 head_offset = offset_of(p.dq, b, h, s.q_begin + first);
#pragma unroll 2
  for (int n = static_cast<int>(threadIdx.x); n < C.tile_q * kEights; n += kThreads) {
    const int row = n / kEights, column = n % kEights * 8;
    if (row >= written || column >= a.dim_qk) continue;
    Real x[8] = {};
    if (first + row < s.len_q) {
      const Real* block = sums + sum_block<C>(row, column);
#pragma unroll
      for (int c = 0; c < 8; ++c)
        x[c] = scale * block[sum_in_block<Real>(row % 8 * 4 + c / 2, row % 16 / 8 * 2 + c % 2)];
    }
    store_eight<C.element>(p.dq.data, p.dq.element, head_offset + row * p.dq.row_stride + column,
                           min(8, a.dim_qk - column), x);
  }
}

template <BackwardConfig C>
__device__ void backward_finish(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const int64 tiles = tiles_in(a.len_q, C.tile_q), count = tiles * a.heads_q * a.batch;
  const int64 n = cta_number(), head = tiles > 0 ? n / tiles : 0;
  if (n < count)
    finish_tile<C>(p, static_cast<int>(head / a.heads_q), static_cast<int>(head % a.heads_q),
                   static_cast<int>(n % tiles));
}

}  // namespace cuflash
