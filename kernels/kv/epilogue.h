// Epilogue of the consumer warps: partials of the key warps go to shared memory and are reduced to O and LSE, or to the
// partial of a split in the workspace. The split that arrives last (kv/ticket.h) reduces the splits of its row tile.
#pragma once

#include "kv/split_reduce.h"
#include "kv/work.h"
#include "ptx/barrier.h"

namespace cuflash {

template <KvConfig C>
struct Epilogue {
  static constexpr Element E = C.element;
  static constexpr int kThreads = consumer_threads(C);
  using Work = KvWork<C>;
  using Real = RealOf<E>;
  using Rows = typename Work::Rows;

  const Work& work;
  // The producer warp has no partials and may run the epilogue first, without reading or writing any: this brings code
  // and params into the caches of the SM before the consumers need them.
  bool warms_icache = false;

  // What does not depend on the partials; see prepare().
  Real scale_log2, natural_scale;
  int output_rows = 0;          // rows of the tile that are written
  SplitWorkspace<C> workspace;  // if there are several splits
  OutputSlice<E> output;        // the thread's first piece

  __device__ explicit Epilogue(const Work& work, bool warms_icache = false)
      : work(work),
        warms_icache(warms_icache),
        output_rows(min(C.tile_q, rows_end(work.a, work.sequence) - work.rows.first)) {}

  // Partial O of key warp w for a row of the tile.
  __device__ Real* warp_sums(int w, int row) const {
    return reinterpret_cast<Real*>(work.memory) + (w * C.tile_q + row) * sums_stride(C);
  }
  __device__ RowState<Real>* warp_states(int w) const {
    return reinterpret_cast<RowState<Real>*>(warp_sums(C.key_warps, 0)) + w * C.tile_q;
  }

  // Called by every consumer warp; the partials overwrite the K and V stages. first: the lane's first row. Rows that
  // are not written, most of them in many tiles, are skipped.
  __device__ __forceinline__ void store_warp_partials(Softmax<Real, 1>& softmax, const typename Work::Output& o,
                                                      int first = Work::lane_row()) const {
    softmax.reduce_row_sum();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + r * 8;
      if (row >= output_rows) continue;
      Real* to = warp_sums(Work::key_warp(), row) + Work::column_warp() * Work::kColumns + lane_id() % 4 * 2;
#pragma unroll
      for (int d = 0; d < Work::kOutputTiles; ++d) to[d * 8] = o[0][d].x[r * 2], to[d * 8 + 1] = o[0][d].x[r * 2 + 1];
      if (Work::column_warp() == 0 && lane_id() % 4 == 0)
        warp_states(Work::key_warp())[row] = {softmax.row_max[r], softmax.row_sum[r]};
    }
  }

  // A piece is kEpilogueColumns columns of one row; pieces are assigned to threads round-robin.
  static constexpr int kPieces = C.dim_v / kEpilogueColumns;
  __device__ int pieces() const { return warms_icache ? kPieces : output_rows * kPieces; }
  __device__ static int first_piece() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static int row_of(int piece) { return piece / kPieces; }
  __device__ static int column_of(int piece) { return piece % kPieces * kEpilogueColumns; }

  // Reduces the key warps.
  __device__ __forceinline__ PartialO<Real> reduce_warps(int piece) const {
    PartialO<Real> sums;
    const int row = row_of(piece), column = column_of(piece);
    sums.template accumulate<C.key_warps>(
        warms_icache ? 0 : C.key_warps, scale_log2, [&](int w, RowState<Real>& state, Real(&x)[kEpilogueColumns]) {
          state = warp_states(w)[row];
          const auto columns = *reinterpret_cast<const Reals<Real, kEpilogueColumns>*>(warp_sums(w, row) + column);
#pragma unroll
          for (int n = 0; n < kEpilogueColumns; ++n) x[n] = columns.x[n];
        });
    return sums;
  }
  // Stores the partial of this split to the workspace.
  __device__ __forceinline__ void store_partial() const {
#pragma unroll 1
    for (int n = first_piece(); n < pieces(); n += kThreads) {
      const PartialO<Real> sums = reduce_warps(n);
      if (warms_icache) continue;
      store_to_global(workspace.partial_o(row_of(n), work.item.split, column_of(n)), sums.x);
      const Real state[2] = {sums.row.row_max, sums.row.row_sum};
      if (column_of(n) == 0) store_to_global(workspace.state(row_of(n), work.item.split), state);
    }
  }
  // Reduces the splits.
  __device__ __forceinline__ PartialO<Real> reduce_splits(int piece) const {
    constexpr int kAtOnce = (C.ctas_per_sm > 2 ? 48 : 64) / sizeof(Real);  // as registers allow
    PartialO<Real> sums;
    const Real *states = workspace.state(row_of(piece), 0),
               *columns = workspace.partial_o(row_of(piece), 0, column_of(piece));
#pragma unroll 1
    for (int left = work.splits; left > 0; left -= kAtOnce) {
      sums.template accumulate<kAtOnce>(warms_icache ? 0 : left, scale_log2,
                                        [&](int n, RowState<Real>& state, Real(&x)[kEpilogueColumns]) {
                                          Real loaded[2];
                                          load_from_l2(states + n * 2, loaded), load_from_l2(columns + n * C.dim_v, x);
                                          state = {loaded[0], loaded[1]};
                                        });
      states += kAtOnce * 2, columns += kAtOnce * C.dim_v;
    }
    return sums;
  }

  // Called by one thread of the CTA before the CTA arrives.
  __device__ __forceinline__ void init_ticket() const {
    if (work.splits > 1) prepare_ticket(work.p.tickets + tile_number(work.p, work.item));
  }
  __device__ __forceinline__ bool is_last_split() const {
    named_barrier_sync(kConsumerBarrier, kThreads);
    return named_barrier_any(kConsumerBarrier, kThreads, threadIdx.x == 0 && arrive(workspace.ticket, work.splits));
  }

  __device__ __forceinline__ OutputSlice<E> output_of(int piece) const {
    auto slice =
        OutputSlice<E>::of(work.p, work.sequence, work.item, work.rows.first + row_of(piece), column_of(piece));
    if (warms_icache) slice.count = 0;
    return slice;
  }
  __device__ __forceinline__ void compute_scales() {
    scale_log2 = Rows::scale_log2(work.a), natural_scale = Rows::natural_scale(work.a);
    materialize(scale_log2), materialize(natural_scale), materialize(output_rows);
  }
  // Computes addresses and scales before run(), where their latency is hidden; after the last keys it would not be.
  __device__ __forceinline__ void prepare() {
    compute_scales();
    if (work.splits > 1) {
      workspace = SplitWorkspace<C>::of(work.p, work.item);
      materialize(workspace.ticket), materialize(workspace.states), materialize(workspace.partials);
    }
    output = output_of(first_piece() < pieces() ? first_piece() : 0);
    materialize(output.index), materialize(output.lse_index);
  }

  // Called by all consumers after a barrier, when all partials are in shared memory.
  __device__ __forceinline__ void run() {
    const bool split = work.splits > 1;
    if (split) {
      store_partial();
      if (!warms_icache && !is_last_split()) return;
    }
#pragma unroll 1
    for (int n = first_piece(); n < pieces(); n += kThreads) {
      if (n >= kThreads) output = output_of(n);
      PartialO<Real> sums = split ? reduce_splits(n) : reduce_warps(n);
      write_output<E, C.fast_decode != 0>(work.p, output, !warms_icache && column_of(n) == 0, natural_scale, sums);
    }
    if (split && threadIdx.x == 0) reset(workspace.ticket);
  }
};

}  // namespace cuflash
