// Converts sums in the workspace to gradients: dq_accum to dQ, and the sums of key tiles that several tasks worked on
// to dK and dV. Multiplies by the scale and writes the type and layout of the caller's tensor, with zeros beyond the
// lengths of padded tensors. A warp reads 512 contiguous bytes of accumulators; shared memory turns them into rows.
#pragma once

#include "portable/backward/operand_tile.h"
#include "portable/backward/workspace.h"
#include "ptx/grid.h"

namespace cuflash {

// kDim: columns of the sums.
template <BackwardConfig C, int kDim>
struct FinishTile {
  using Real = RealOf<C.element>;
  using Rows = Tile<C.element, C.tile_q, kDim>;
  static constexpr int kThreads = finish_threads(C), kWarps = kThreads / 32;
  static constexpr int kColumnBlocks = kDim / 8, kBlocks = C.tile_q / 16 * kColumnBlocks;
  static constexpr int kAtOnce = 4;  // blocks in flight per warp

  const RowsView& to;
  int dim;  // columns of `to`
  Real scale;
  const Real* accum;
  int parts;          // parts that each have sums, which are added up in order
  int64 part_size;    // elements between the sums of adjacent parts
  int64 head_offset;  // offset of the tile's first row
  int existing;       // rows within the sequence
  int written;

  // Calls use(row, column, two neighbouring elements) for all elements of this lane.
  template <class Use>
  __device__ __forceinline__ void for_pairs(Use use) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    for (int first = warp * kAtOnce; first < kBlocks; first += kWarps * kAtOnce) {
      Accumulator<Real> x[kAtOnce] = {};
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        if (first + n < kBlocks && (first + n) / kColumnBlocks * 16 < existing)
          x[n] = load_block(accum + (first + n) * 128, lane_id());
#pragma unroll 1
      for (int part = 1; part < parts; ++part)
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n)
          if (first + n < kBlocks && (first + n) / kColumnBlocks * 16 < existing) {
            const Accumulator<Real> y = load_block(accum + part * part_size + (first + n) * 128, lane_id());
#pragma unroll
            for (int e = 0; e < 4; ++e) x[n].x[e] += y.x[e];
          }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int block = first + n, column = block % kColumnBlocks * 8 + accumulator_column();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = block / kColumnBlocks * 16 + half * 8 + accumulator_row();
          const bool exists = row < existing;
          if (block < kBlocks)
            use(row, column, exists ? scale * x[n].x[2 * half] : Real(0),
                exists ? scale * x[n].x[2 * half + 1] : Real(0));
        }
      }
    }
  }

  // memory: shared memory of at least Rows::kBytes.
  __device__ __forceinline__ void run(unsigned char* memory) const {
    if (to.element == static_cast<int>(C.element)) {
      const Rows rows{memory};
      for_pairs([&](int row, int column, Real x, Real y) { store_two<C.element>(rows.at(row, column), x, y); });
      __syncthreads();
      store_tile<kThreads>(rows, to, head_offset, 0, written, dim);
      return;
    }
    auto* first = static_cast<float*>(to.data) + head_offset;  // f32, the other type of a gradient
    for_pairs([&](int row, int column, Real x, Real y) {
      float* at = first + row * to.row_stride + column;
      if (row < written && column < dim) at[0] = static_cast<float>(x);
      if (row < written && column + 1 < dim) at[1] = static_cast<float>(y);
    });
  }
};

// Waits until all tasks have added to the sums of a head. An SM without a task gets CTAs of this kernel while others
// are still computing, and most heads are complete by then. A part of a key tile that no query sees may never become a
// task, so after a while the CTA waits for the end of the main kernel instead.
__device__ __forceinline__ void wait_for_tasks(const BackwardParams& p, const Sequence& s, int b, int h) {
  const AttentionParams& a = p.attention;
  constexpr int kTries = 200, kNanoseconds = 1000;
  if (threadIdx.x == 0) {
    const int64 tasks = tiles_in(p.key_tiles ? s.len_k : a.len_k, p.task_keys) * p.query_parts;
    const unsigned* done = p.dq_tasks + (int64{b} * a.heads_q + h);
    int tries = 0;
    for (; tries < kTries && load_acquire(done) < tasks; ++tries) sleep_for(kNanoseconds);
    if (tries == kTries) griddepcontrol_wait();
  }
  __syncthreads();
}

// last: whether this is the last CTA that converts dQ. It waits for the end of the main kernel, so that this kernel
// does not end earlier.
template <BackwardConfig C>
__device__ __forceinline__ void finish_dq(const BackwardParams& p, int64 n, bool last, unsigned char* memory) {
  const AttentionParams& a = p.attention;
  const auto [b, h, tile] = query_tile_at<C>(p, n);
  const Sequence s = sequence_of(a, b);
  if (p.dq_tasks && !last) wait_for_tasks(p, s, b, h);
  else griddepcontrol_wait();
  const int first = tile * C.tile_q, written = min(C.tile_q, (a.cu_q ? s.len_q : a.len_q) - first);
  if (written <= 0) return;
  FinishTile<C, C.dim_qk>{
      p.dq,   a.dim_qk, static_cast<RealOf<C.element>>(a.scale),  dq_accum<C>(p, query_tile<C>(p, s, b, h, tile)),
      1,      0,        offset_of(p.dq, b, h, s.q_begin + first), s.len_q - first,
      written}
      .run(memory);
}

// Converts dK or dV of 64 keys.
template <BackwardConfig C, int kDim>
__device__ __forceinline__ void finish_keys(const BackwardParams& p, int64 n, const RowsView& to, const float* sums,
                                            int dim, float scale, unsigned char* memory) {
  static_assert(C.tile_q == kSumKeys);
  const AttentionParams& a = p.attention;
  if (!to.data) return;
  const auto [b, h, tile] = row_tile(a.cu_k, a.total_k, p.packed_key_tiles, a.batch, a.heads_k, a.len_k, kSumKeys, n);
  const Sequence s = sequence_of(a, b);
  const int first = tile * kSumKeys, written = min(kSumKeys, (a.cu_k ? s.len_k : a.len_k) - first);
  if (written <= 0) return;
  constexpr int kSize = kSumKeys * kDim;
  FinishTile<C, kDim>{to,
                      dim,
                      scale,
                      sums + key_tile(p, s, b, h, tile) * kSize,
                      p.part_tiles != 0 ? p.head_parts * p.query_parts : 1,
                      p.part_tiles * kSize,
                      offset_of(to, b, h, s.k_begin + first),
                      s.len_k - first,
                      written}
      .run(memory);
}

// A config with dim_v has sums of key tiles as well.
template <BackwardConfig C>
__device__ __forceinline__ void backward_finish(const BackwardParams& p) {
  constexpr int kWidest = C.dim_v > C.dim_qk ? C.dim_v : C.dim_qk;
  __shared__ __align__(16) unsigned char memory[Tile<C.element, C.tile_q, kWidest>::kBytes];
  const int64 n = cta_number(), queries = p.dq_accum ? num_query_tiles<C>(p) : 0;
  if (n < queries) {
    finish_dq<C>(p, n, n + 1 == queries, memory);
    return;
  }
  griddepcontrol_wait();
  if constexpr (C.dim_v != 0) {
    const AttentionParams& a = p.attention;
    const int64 keys = num_key_tiles(p), tile = n - queries;
    if (tile < keys) finish_keys<C, C.dim_qk>(p, tile, p.dk, p.dk_accum, a.dim_qk, static_cast<float>(a.scale), memory);
    else if (tile < 2 * keys)
      finish_keys<C, C.dim_v>(p, tile - keys, p.dv, p.dv_accum, a.dim_v, static_cast<float>(a.keep_scale), memory);
  }
}

}  // namespace cuflash
