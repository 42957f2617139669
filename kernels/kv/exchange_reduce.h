// Epilogue of splits that run at the same time: each split publishes the partial of its key warps through L2 and
// reduces some of the segments over all splits. After the last keys there is no fence and no atomic, and no CTA has to
// reduce everything alone.
//
//   consumer warps   partials to shared memory | reduce the key warps, publish | more segments, if there are many
//   producer warp    run both once to warm the instruction cache | first segment: poll all splits, reduce, store O
#pragma once

#include "kv/epilogue.h"
#include "kv/exchange.h"

namespace cuflash {

template <KvConfig C>
struct ExchangeEpilogue : Epilogue<C> {
  using Base = Epilogue<C>;
  using Base::scale_log2, Base::output, Base::warms_icache, Base::work, Base::output_rows;
  using Work = typename Base::Work;
  static constexpr int kWarps = Base::kThreads / 32;

  using Exchange = SplitExchange<C>;
  Exchange exchange;
  // Addresses of the first piece that a thread publishes.
  struct Piece {
    unsigned sums, state;  // shared memory addresses of key warp 0
    FlaggedPair *columns_to, *state_to;
    bool has_state;
  };
  Piece piece;
  int pieces;

  __device__ explicit ExchangeEpilogue(const Work& work, bool warms_icache = false) : Base(work, warms_icache) {}

  __device__ __forceinline__ Piece piece_of(int n) const {
    const int row = Base::row_of(n), column = Base::column_of(n), split = work.item.split;
    const int segment = Exchange::segment_of(row, column), lane = column % Exchange::kSegmentColumns / kEpilogueColumns;
    return {shared_address(Base::warp_sums(0, row) + column), shared_address(Base::warp_states(0) + row),
            exchange.columns(segment, split, lane), exchange.state(segment, split), lane == 0};
  }
  __device__ __forceinline__ OutputSlice<C.element> output_of_segment(int segment) const {
    auto slice =
        OutputSlice<C.element>::of(work.p, work.sequence, work.item, work.rows.first + Exchange::row_of(segment),
                                   Exchange::first_column(segment) + Exchange::lane() * kEpilogueColumns);
    if (Exchange::lane_group() != 0) slice.count = 0;
    return slice;
  }
  // The producer warp takes the CTA's first segment: it is free before the consumers are.
  __device__ int first_segment() const { return work.item.split + work.splits * (warms_icache ? 0 : 1 + Work::warp()); }
  __device__ int segments() const { return output_rows * Exchange::kRowSegments; }

  __device__ __forceinline__ void init_ticket() const {}
  __device__ __forceinline__ void prepare() {
    if (work.splits == 1) return Base::prepare();
    Base::compute_scales();
    exchange = Exchange::of(work.p, work.item);
    materialize(exchange.states), materialize(exchange.sums), materialize(exchange.flag);
    pieces = Base::pieces();
    piece = piece_of(Base::first_piece());
    materialize(pieces), materialize(piece.sums), materialize(piece.state);
    materialize(piece.columns_to), materialize(piece.state_to);
    if (!warms_icache && Work::warp() == 0 && work.item.split < segments()) exchange.prefetch(work.item.split);
    if (!warms_icache) return;
    output = output_of_segment(first_segment() < segments() ? first_segment() : 0);
    materialize(output.index), materialize(output.lse_index);
  }

  // Called by all consumers after a barrier, when all partials are in shared memory, and by the producer warp before
  // that. The producer's first pass is a dry run (`live` is false); then it waits for the consumers at
  // kPartialsBarrier.
  __device__ __forceinline__ void run() {
    if (work.splits == 1) return Base::run();
    if (!warms_icache && work.item.split < segments()) named_barrier_arrive(kPartialsBarrier, Base::kThreads + 32);
    publish();
    int segment = first_segment();
    bool live = !warms_icache;
#pragma unroll 1
    while (segment < segments()) {
      if (!warms_icache || segment != first_segment()) output = output_of_segment(segment);
      else if (live) named_barrier_sync(kPartialsBarrier, Base::kThreads + 32);
      reduce_segment(segment, live);
      if (live) segment += work.splits * (kWarps + 1);
      live = true;
    }
  }

 private:
  // Reduces the key warps. Loads are predicated instead of skipped, so that the dry run executes the same code.
  __device__ __forceinline__ PartialO<float> reduce_warps() const {
    PartialO<float> sums;
    sums.template accumulate<C.key_warps>(
        C.key_warps, scale_log2, [&](int w, RowState<float>& state, float(&x)[kEpilogueColumns]) {
          constexpr unsigned kRows = C.tile_q;
          float loaded[2] = {minus_infinity<float>(), 0};
          load_from_shared(piece.state + static_cast<unsigned>(w * kRows * sizeof state), loaded, !warms_icache);
          load_from_shared(piece.sums + static_cast<unsigned>(w * kRows * sums_stride(C) * sizeof(float)), x,
                           !warms_icache);
          state = {loaded[0], loaded[1]};
        });
    return sums;
  }
  __device__ __forceinline__ void publish() {
#pragma unroll 1
    for (int n = Base::first_piece(); n < pieces; n += Base::kThreads) {
      if (n >= Base::kThreads) piece = piece_of(n);
      const PartialO<float> sums = reduce_warps();
      store_flagged(piece.columns_to, sums.x[0], sums.x[1], exchange.flag, !warms_icache);
      store_flagged(piece.columns_to + Exchange::kSegmentLanes, sums.x[2], sums.x[3], exchange.flag, !warms_icache);
      store_flagged(piece.state_to, sums.row.row_max, sums.row.row_sum, exchange.flag,
                    !warms_icache && piece.has_state);
    }
  }
  // Called by one warp. live == false: a dry run that neither polls nor stores.
  __device__ __forceinline__ void reduce_segment(int segment, bool live) const {
    auto sums = exchange.reduce(segment, live ? work.splits : 0, scale_log2);
    auto slice = output;
    if (!live) slice.count = 0;
    write_output<C.element, C.fast_decode != 0>(
        work.p, slice, live && lane_id() == 0 && Exchange::first_column(segment) == 0, this->natural_scale, sums);
  }
};

template <KvConfig C, bool = C.l2_exchange != 0>
struct EpilogueFor {
  using Type = Epilogue<C>;
};
template <KvConfig C>
struct EpilogueFor<C, true> {
  using Type = ExchangeEpilogue<C>;
};

}  // namespace cuflash
