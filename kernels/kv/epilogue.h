// What the key warps of a CTA have summed becomes the output, or what a split leaves behind; whoever of the splits of a
// tile of rows comes last adds up what they have left.
#pragma once

#include "kv/split_reduce.h"
#include "kv/work.h"
#include "ptx/barrier.h"

namespace cuflash {

template <KvConfig C>
struct CacheSums {
  static constexpr Element E = C.element;
  static constexpr int kThreads = consumer_threads(C), kBarrier = 1;
  using Work = KvWork<C>;
  using Real = RealOf<E>;
  using Rows = typename Work::Rows;

  const Work& work;
  // A warp that has no sums may go through all this before the others. It neither reads nor writes any: code and params,
  // which come from far, are in the caches of the multiprocessor then.
  bool warms_icache = false;

  // What does not depend on sums.
  Real factor, unit;
  int written = 0;        // rows of the tile that are
  SplitPlace<C> place;    // where there are splits
  OutputPlace<E> output;  // of the thread's first piece

  __device__ explicit CacheSums(const Work& work, bool warms_icache = false)
      : work(work),
        warms_icache(warms_icache),
        written(min(C.tile_q, rows_end(work.a, work.sequence) - work.rows.first)) {}

  // Sums of key warp w of a row of the tile.
  __device__ Real* warp_sums(int w, int row) const {
    return reinterpret_cast<Real*>(work.memory) + (w * C.tile_q + row) * sums_stride(C);
  }
  __device__ RowState<Real>* warp_states(int w) const {
    return reinterpret_cast<RowState<Real>*>(warp_sums(C.key_warps, 0)) + w * C.tile_q;
  }

  // By every warp that has sums, in the place of keys and values. first: the lane's first row of them. Of many tiles most rows
  // are nobody's.
  __device__ __forceinline__ void share(Softmax<Real, 1>& softmax, const typename Work::Output& o,
                                        int first = Work::lane_row()) const {
    softmax.reduce_row_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + r * 8;
      if (row >= written) continue;
      Real* to = warp_sums(Work::key_warp(), row) + Work::column_warp() * Work::kColumns + lane_id() % 4 * 2;
#pragma unroll
      for (int d = 0; d < Work::kOutputTiles; ++d) to[d * 8] = o[0][d].x[r * 2], to[d * 8 + 1] = o[0][d].x[r * 2 + 1];
      if (Work::column_warp() == 0 && lane_id() % 4 == 0)
        warp_states(Work::key_warp())[row] = {softmax.row_max[r], softmax.row_sum[r]};
    }
  }

  // Pieces of some columns of these rows, dealt out to threads.
  static constexpr int kPieces = C.dim_v / kEndColumns;
  __device__ int pieces() const { return warms_icache ? kPieces : written * kPieces; }
  __device__ static int first_piece() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int row_of(int piece) { return piece / kPieces; }
  __device__ static int column_of(int piece) { return piece % kPieces * kEndColumns; }

  // Key warps become one.
  __device__ __forceinline__ SummedColumns<Real> of_warps(int piece) const {
    SummedColumns<Real> sums;
    const int row = row_of(piece), column = column_of(piece);
    sums.template add<C.key_warps>(
        warms_icache ? 0 : C.key_warps, factor, [&](int w, RowState<Real>& state, Real(&x)[kEndColumns]) {
          state = warp_states(w)[row];
          const auto columns = *reinterpret_cast<const Reals<Real, kEndColumns>*>(warp_sums(w, row) + column);
#pragma unroll
          for (int n = 0; n < kEndColumns; ++n) x[n] = columns.x[n];
        });
    return sums;
  }
  // What a split leaves behind.
  __device__ __forceinline__ void leave() const {
#pragma unroll 1
    for (int n = first_piece(); n < pieces(); n += kThreads) {
      const SummedColumns<Real> sums = of_warps(n);
      if (warms_icache) continue;
      store_to_global(place.sums(row_of(n), work.at.split, column_of(n)), sums.x);
      const Real state[2] = {sums.row.top, sums.row.sum};
      if (column_of(n) == 0) store_to_global(place.state(row_of(n), work.at.split), state);
    }
  }
  // Splits become one.
  __device__ __forceinline__ SummedColumns<Real> of_splits(int piece) const {
    constexpr int kAtOnce = (C.ctas_per_sm > 2 ? 48 : 64) / sizeof(Real);  // as registers allow
    SummedColumns<Real> sums;
    const Real *states = place.state(row_of(piece), 0), *columns = place.sums(row_of(piece), 0, column_of(piece));
#pragma unroll 1
    for (int left = work.splits; left > 0; left -= kAtOnce) {
      sums.template add<kAtOnce>(warms_icache ? 0 : left, factor,
                                 [&](int n, RowState<Real>& state, Real(&x)[kEndColumns]) {
                                   Real loaded[2];
                                   load_from_l2(states + n * 2, loaded), load_from_l2(columns + n * C.dim_v, x);
                                   state = {loaded[0], loaded[1]};
                                 });
      states += kAtOnce * 2, columns += kAtOnce * C.dim_v;
    }
    return sums;
  }

  // By one thread of the CTA, before it arrives.
  __device__ __forceinline__ void look_at_ticket() const {
    if (work.splits > 1) prepare_ticket(work.p.tickets + tile_number(work.p, work.at));
  }
  __device__ __forceinline__ bool comes_last() const {
    named_barrier_sync(kBarrier, kThreads);
    return named_barrier_any(kBarrier, kThreads, threadIdx.x == 0 && arrive(place.ticket, work.splits));
  }

  __device__ __forceinline__ OutputPlace<E> output_of(int piece) const {
    auto found = OutputPlace<E>::of(work.p, work.sequence, work.at, work.rows.first + row_of(piece), column_of(piece));
    if (warms_icache) found.count = 0;
    return found;
  }
  __device__ __forceinline__ void find_factors() {
    factor = Rows::factor(work.a), unit = Rows::unit(work.a);
    find_now(factor), find_now(unit), find_now(written);
  }
  // Before `add`, where there is time: behind the last keys everybody waits for every instruction.
  __device__ __forceinline__ void prepare() {
    find_factors();
    if (work.splits > 1) {
      place = SplitPlace<C>::of(work.p, work.at);
      find_now(place.ticket), find_now(place.states), find_now(place.all_sums);
    }
    output = output_of(first_piece() < pieces() ? first_piece() : 0);
    find_now(output.index), find_now(output.lse_index);
  }

  // By all threads that compute, behind a barrier: all sums are shared.
  __device__ __forceinline__ void add() {
    const bool split = work.splits > 1;
    if (split) {
      leave();
      if (!warms_icache && !comes_last()) return;
    }
#pragma unroll 1
    for (int n = first_piece(); n < pieces(); n += kThreads) {
      if (n >= kThreads) output = output_of(n);
      SummedColumns<Real> sums = split ? of_splits(n) : of_warps(n);
      write_output<E, C.fast_decode != 0>(work.p, output, !warms_icache && column_of(n) == 0, unit, sums);
    }
    if (split && threadIdx.x == 0) reset(place.ticket);
  }
};

}  // namespace cuflash
