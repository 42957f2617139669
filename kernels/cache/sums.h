// What the key warps of a CTA have summed becomes the output, or what a split leaves behind; whoever of the splits of a
// tile of rows comes last adds up what they have left.
#pragma once

#include "cache/ends.h"
#include "cache/ticket.h"
#include "cache/work.h"

namespace cuflash {

template <CacheConfig C>
struct CacheSums {
  static constexpr Element E = C.element;
  static constexpr int kThreads = num_threads(C);
  using Work = CacheWork<C>;
  using Real = RealOf<E>;
  using Rows = typename Work::Rows;

  const Work& work;

  // Sums of key warp w of a row of the tile.
  __device__ Real* warp_sums(int w, int row) const {
    return reinterpret_cast<Real*>(work.memory) + (w * C.tile_q + row) * sums_stride(C);
  }
  __device__ RowState<Real>* warp_states(int w) const {
    return reinterpret_cast<RowState<Real>*>(warp_sums(C.key_warps, 0)) + w * C.tile_q;
  }

  // By every warp that has sums, in the place of keys and values.
  __device__ __forceinline__ void share(Softmax<Real, 1>& softmax, const typename Work::Output& o) const {
    softmax.gather();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = Work::lane_row() + r * 8;
      Real* to = warp_sums(Work::key_warp(), row) + Work::column_warp() * Work::kColumns + lane_id() % 4 * 2;
#pragma unroll
      for (int d = 0; d < Work::kOutputTiles; ++d) to[d * 8] = o[0][d].x[r * 2], to[d * 8 + 1] = o[0][d].x[r * 2 + 1];
      if (Work::column_warp() == 0 && lane_id() % 4 == 0)
        warp_states(Work::key_warp())[row] = {softmax.reference[r], softmax.sum[r]};
    }
  }

  // Rows of the tile that are written.
  __device__ int written() const { return min(C.tile_q, rows_end(work.a, work.sequence) - work.rows.first); }

  // Calls use(row of the tile, column) for pieces of eight columns of these rows.
  template <class Use>
  __device__ __forceinline__ void for_pieces(Use&& use) const {
    constexpr int kPieces = C.dim_v / 8;
#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x); n < written() * kPieces; n += kThreads)
      use(n / kPieces, n % kPieces * 8);
  }

  // Key warps become one: the output, or what a split leaves behind.
  __device__ __forceinline__ void add_warps() const {
    const SplitPlace<C> place(work.p, work.at);
    for_pieces([&](int row, int column) {
      SummedEight<Real, 1> eight(
          C.key_warps, Rows::factor(work.a), [&](int w) { return warp_states(w)[row]; },
          [&](int w, Real(&x)[8]) {
            const auto columns = *reinterpret_cast<const EightReals<Real>*>(warp_sums(w, row) + column);
#pragma unroll
            for (int n = 0; n < 8; ++n) x[n] = columns.x[n];
          });
      if (work.splits == 1) return finish(row, column, eight);
      EightReals<Real> sums;
#pragma unroll
      for (int n = 0; n < 8; ++n) sums.x[n] = eight.x[n];
      *reinterpret_cast<EightReals<Real>*>(place.sums(work.at.split, row, column)) = sums;
      Real* const state = place.state(work.at.split, row);
      if (column == 0) state[0] = eight.row.top, state[1] = eight.row.sum;
    });
  }
  template <class Summed>
  __device__ __forceinline__ void finish(int row, int column, Summed& eight) const {
    finish_eight<E>(work.p, work.sequence, work.at, work.rows.first + row, column, Rows::unit(work.a), eight);
  }

  // Splits become one.
  __device__ __forceinline__ void add_splits() const {
    constexpr int kAtOnce = (C.ctas_per_sm > 2 ? 24 : 32) / sizeof(Real);  // as registers allow
    const SplitPlace<C> place(work.p, work.at);
    for_pieces([&](int row, int column) {
      SummedEight<Real, kAtOnce> eight(
          work.splits, Rows::factor(work.a), [&](int split) { return state_from_l2(place.state(split, row)); },
          [&](int split, Real(&x)[8]) { load_eight_from_l2(place.sums(split, row, column), x); });
      finish(row, column, eight);
    });
  }
  __device__ static RowState<Real> state_from_l2(const Real* state) {
    return {load_from_l2(state), load_from_l2(state + 1)};
  }

  __device__ __forceinline__ uint64* ticket() const { return work.p.tickets + tile_number(work.p, work.at); }
  // By one thread of the CTA, before it arrives.
  __device__ __forceinline__ void prepare() const {
    if (work.splits > 1) prepare_ticket(ticket());
  }
  __device__ __forceinline__ bool comes_last() const {
    __syncthreads();
    const bool last = threadIdx.x == 0 && arrive(ticket(), work.splits);
    return __syncthreads_or(last) != 0;
  }

  // By all threads, behind a barrier: all sums are shared.
  __device__ __forceinline__ void add() const {
    add_warps();
    if (work.splits > 1 && comes_last()) add_splits();
  }
};

}  // namespace cuflash
