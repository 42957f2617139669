// Converts dq_accum to dQ: multiplies by the scale and writes the type and layout of the caller's tensor, with zeros
// beyond the lengths of padded tensors. A warp reads 512 contiguous bytes of accumulators; shared memory turns them
// into rows.
#pragma once

#include "portable/backward/operand_tile.h"
#include "portable/backward/workspace.h"

namespace cuflash {

template <BackwardConfig C>
struct FinishTile {
  using Real = RealOf<C.element>;
  using Rows = Tile<C.element, C.tile_q, C.dim_qk>;
  static constexpr int kThreads = finish_threads(C), kWarps = kThreads / 32;
  static constexpr int kColumnBlocks = C.dim_qk / 8, kBlocks = C.tile_q / 16 * kColumnBlocks;
  static constexpr int kAtOnce = 4;  // blocks in flight per warp

  const BackwardParams& p;
  const Real* accum;
  int64 head_offset;  // of the tile's first query
  int existing;       // rows within the sequence
  int written;

  // Calls use(row, column, two neighbouring elements) for all elements of this lane.
  template <class Use>
  __device__ __forceinline__ void for_pairs(Use use) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const Real scale = static_cast<Real>(p.attention.scale);
    for (int first = warp * kAtOnce; first < kBlocks; first += kWarps * kAtOnce) {
      Accumulator<Real> x[kAtOnce] = {};
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        if (first + n < kBlocks && (first + n) / kColumnBlocks * 16 < existing)
          x[n] = load_block(accum + (first + n) * 128, lane_id());
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int block = first + n, column = block % kColumnBlocks * 8 + lane_id() % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = block / kColumnBlocks * 16 + half * 8 + lane_id() / 4;
          const bool exists = row < existing;
          if (block < kBlocks)
            use(row, column, exists ? scale * x[n].x[2 * half] : Real(0),
                exists ? scale * x[n].x[2 * half + 1] : Real(0));
        }
      }
    }
  }

  __device__ __forceinline__ void run() const {
    if (p.dq.element == static_cast<int>(C.element)) {
      __shared__ __align__(16) unsigned char memory[Rows::kBytes];
      const Rows rows{memory};
      for_pairs([&](int row, int column, Real x, Real y) { store_two<C.element>(rows.at(row, column), x, y); });
      __syncthreads();
      store_tile<kThreads>(rows, p.dq, head_offset, 0, written, p.attention.dim_qk);
      return;
    }
    auto* first = static_cast<float*>(p.dq.data) + head_offset;  // f32, the other type of a gradient
    for_pairs([&](int row, int column, Real x, Real y) {
      float* to = first + row * p.dq.row_stride + column;
      if (row < written && column < p.attention.dim_qk) to[0] = static_cast<float>(x);
      if (row < written && column + 1 < p.attention.dim_qk) to[1] = static_cast<float>(y);
    });
  }
};

template <BackwardConfig C>
__device__ __forceinline__ void backward_finish(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const int64 tiles = tiles_in(a.len_q, C.tile_q), count = tiles * a.heads_q * a.batch, n = cta_number();
  if (n >= count) return;
  const int64 head = quotient(n, tiles), b = quotient(head, a.heads_q);
  const int tile = static_cast<int>(n - head * tiles), h = static_cast<int>(head - b * a.heads_q);
  const Sequence s = sequence_of(a, static_cast<int>(b));
  const int first = tile * C.tile_q, written = min(C.tile_q, (a.cu_q ? s.len_q : a.len_q) - first);
  if (written <= 0) return;
  FinishTile<C>{p, dq_accum<C>(p, query_tile<C>(p, s, static_cast<int>(b), h, tile)),
                offset_of(p.dq, b, h, s.q_begin + first), s.len_q - first, written}
      .run();
}

}  // namespace cuflash
