// What the key warps of a CTA have summed becomes the output, or what a split leaves behind; whoever of the splits of a
// tile of rows comes last adds up what they have left.
#pragma once

#include "cache/ends.h"
#include "cache/work.h"
#include "ptx/barrier.h"

namespace cuflash {

template <CacheConfig C>
struct CacheSums {
  static constexpr Element E = C.element;
  static constexpr int kThreads = computing_threads(C), kBarrier = 1;
  using Work = CacheWork<C>;
  using Real = RealOf<E>;
  using Rows = typename Work::Rows;

  const Work& work;
  // A warp that has no sums may go through all this before the others. It neither reads nor writes any: code and params,
  // which come from far, are in the caches of the multiprocessor then.
  bool rehearses = false;

  // Sums of key warp w of a row of the tile.
  __device__ Real* warp_sums(int w, int row) const {
    return reinterpret_cast<Real*>(work.memory) + (w * C.tile_q + row) * sums_stride(C);
  }
  __device__ RowState<Real>* warp_states(int w) const {
    return reinterpret_cast<RowState<Real>*>(warp_sums(C.key_warps, 0)) + w * C.tile_q;
  }

  // By every warp that has sums, in the place of keys and values. first: the lane's first row of them.
  __device__ __forceinline__ void share(Softmax<Real, 1>& softmax, const typename Work::Output& o,
                                        int first = Work::lane_row()) const {
    softmax.gather();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + r * 8;
      Real* to = warp_sums(Work::key_warp(), row) + Work::column_warp() * Work::kColumns + lane_id() % 4 * 2;
#pragma unroll
      for (int d = 0; d < Work::kOutputTiles; ++d) to[d * 8] = o[0][d].x[r * 2], to[d * 8 + 1] = o[0][d].x[r * 2 + 1];
      if (Work::column_warp() == 0 && lane_id() % 4 == 0)
        warp_states(Work::key_warp())[row] = {softmax.reference[r], softmax.sum[r]};
    }
  }

  // Rows of the tile that are written.
  __device__ int written() const { return min(C.tile_q, rows_end(work.a, work.sequence) - work.rows.first); }

  // Calls use(row of the tile, column) for pieces of some columns of these rows.
  template <class Use>
  __device__ __forceinline__ void for_pieces(Use&& use) const {
    constexpr int kPieces = C.dim_v / kEndColumns;
    const int end = rehearses ? kPieces : written() * kPieces;
#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x) % kThreads; n < end; n += kThreads)
      use(n / kPieces, n % kPieces * kEndColumns);
  }

  // Key warps become one: the output, or what a split leaves behind.
  __device__ __forceinline__ void add_warps() const {
    const SplitPlace<C> place(work.p, work.at);
    for_pieces([&](int row, int column) {
      SummedColumns<Real> sums;
      sums.template add<C.key_warps>(
          rehearses ? 0 : C.key_warps, Rows::factor(work.a), [&](int w, RowState<Real>& state, Real(&x)[kEndColumns]) {
            state = warp_states(w)[row];
            const auto columns = *reinterpret_cast<const Reals<Real, kEndColumns>*>(warp_sums(w, row) + column);
#pragma unroll
            for (int n = 0; n < kEndColumns; ++n) x[n] = columns.x[n];
          });
      if (work.splits == 1) return finish(row, column, sums);
      if (rehearses) return;
      store_to_global(place.sums(row, work.at.split, column), sums.x);
      const Real state[2] = {sums.row.top, sums.row.sum};
      if (column == 0) store_to_global(place.state(row, work.at.split), state);
    });
  }
  __device__ __forceinline__ void finish(int row, int column, SummedColumns<Real>& sums) const {
    finish_columns<E>(work.p, work.sequence, work.at, work.rows.first + row, column, Rows::unit(work.a), sums,
                      !rehearses);
  }

  // Splits become one.
  __device__ __forceinline__ void add_splits() const {
    constexpr int kAtOnce = (C.ctas_per_sm > 2 ? 48 : 64) / sizeof(Real);  // as registers allow
    const SplitPlace<C> place(work.p, work.at);
    for_pieces([&](int row, int column) {
      SummedColumns<Real> sums;
      const Real *states = place.state(row, 0), *columns = place.sums(row, 0, column);
#pragma unroll 1
      for (int left = work.splits; left > 0; left -= kAtOnce) {
        sums.template add<kAtOnce>(rehearses ? 0 : left, Rows::factor(work.a),
                                   [&](int n, RowState<Real>& state, Real(&x)[kEndColumns]) {
                                     Real loaded[2];
                                     load_from_l2(states + n * 2, loaded), load_from_l2(columns + n * C.dim_v, x);
                                     state = {loaded[0], loaded[1]};
                                   });
        states += kAtOnce * 2, columns += kAtOnce * C.dim_v;
      }
      finish(row, column, sums);
    });
  }

  __device__ __forceinline__ uint64* ticket() const { return work.p.tickets + tile_number(work.p, work.at); }
  // By one thread of the CTA, before it arrives.
  __device__ __forceinline__ void prepare() const {
    if (work.splits > 1) prepare_ticket(ticket());
  }
  __device__ __forceinline__ bool comes_last() const {
    numbered_barrier_wait(kBarrier, kThreads);
    return numbered_barrier_any(kBarrier, kThreads, threadIdx.x == 0 && arrive(ticket(), work.splits));
  }

  // By all threads that compute, behind a barrier: all sums are shared.
  __device__ __forceinline__ void add() const {
    add_warps();
    if (work.splits > 1 && (rehearses || comes_last())) add_splits();
  }
};

}  // namespace cuflash
