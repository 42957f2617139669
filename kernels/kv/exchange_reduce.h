// The end of splits that run at one time: every one of them posts what its key warps have summed, and adds up a part of the
// rows over all splits. Behind the last keys nobody waits for a fence, for an atomic, or for one CTA that does it all.
//
//   warps that compute   share sums in shared memory | add them up, post them | units, if there are many
//   copying warp         rehearse both | units: until all splits have posted, add up, output
#pragma once

#include "kv/epilogue.h"
#include "kv/exchange.h"

namespace cuflash {

template <KvConfig C>
struct PostedSums : CacheSums<C> {
  using Base = CacheSums<C>;
  using Base::factor, Base::output, Base::warms_icache, Base::work, Base::written;
  using Work = typename Base::Work;
  // A numbered barrier, as those of TmaKeys: the copying warp waits for the others there, and not they for it.
  static constexpr int kShared = 4;
  static constexpr int kWarps = Base::kThreads / 32;

  Posts<C> exchanges;
  // Of what a thread posts first.
  struct Piece {
    unsigned sums, state;  // of the first key warp, in shared memory
    FlaggedPair *columns_to, *state_to;
    bool has_state;
  };
  Piece piece;
  int pieces;

  __device__ explicit PostedSums(const Work& work, bool warms_icache = false) : Base(work, warms_icache) {}

  __device__ __forceinline__ Piece piece_of(int n) const {
    const int row = Base::row_of(n), column = Base::column_of(n), split = work.at.split;
    const int unit = Posts<C>::unit_of(row, column), lane = column % Posts<C>::kUnitColumns / kEndColumns;
    return {shared_address(Base::warp_sums(0, row) + column), shared_address(Base::warp_states(0) + row),
            exchanges.columns(unit, split, lane), exchanges.state(unit, split), lane == 0};
  }
  __device__ __forceinline__ OutputPlace<C.element> output_of_unit(int unit) const {
    auto found = OutputPlace<C.element>::of(work.p, work.sequence, work.at, work.rows.first + Posts<C>::row_of(unit),
                                            Posts<C>::first_column(unit) + Posts<C>::lane() * kEndColumns);
    if (Posts<C>::turn() != 0) found.count = 0;
    return found;
  }
  // The copying warp has a CTA's first unit: the others come to theirs when it is there already.
  __device__ int first_unit() const { return work.at.split + work.splits * (warms_icache ? 0 : 1 + Work::warp()); }
  __device__ int units() const { return written * Posts<C>::kRowUnits; }

  __device__ __forceinline__ void look_at_ticket() const {}
  __device__ __forceinline__ void prepare() {
    if (work.splits == 1) return Base::prepare();
    Base::find_factors();
    exchanges = Posts<C>::of(work.p, work.at);
    find_now(exchanges.states), find_now(exchanges.sums), find_now(exchanges.mark);
    pieces = Base::pieces();
    piece = piece_of(Base::first_piece());
    find_now(pieces), find_now(piece.sums), find_now(piece.state);
    find_now(piece.columns_to), find_now(piece.state_to);
    if (!warms_icache && Work::warp() == 0 && work.at.split < units()) exchanges.ask_for(work.at.split);
    if (!warms_icache) return;
    output = output_of_unit(first_unit() < units() ? first_unit() : 0);
    find_now(output.index), find_now(output.lse_index);
  }

  // By all threads that compute, behind a barrier: all sums are shared. And by the copying warp before that.
  __device__ __forceinline__ void add() {
    if (work.splits == 1) return Base::add();
    if (!warms_icache && work.at.split < units()) named_barrier_arrive(kShared, Base::kThreads + 32);
    post();
    int unit = first_unit();
    bool really = !warms_icache;
#pragma unroll 1
    while (unit < units()) {
      if (!warms_icache || unit != first_unit()) output = output_of_unit(unit);
      else if (really) named_barrier_sync(kShared, Base::kThreads + 32);
      collect(unit, really);
      if (really) unit += work.splits * (kWarps + 1);
      really = true;
    }
  }

 private:
  // Key warps become one.
  __device__ __forceinline__ SummedColumns<float> of_warps() const {
    SummedColumns<float> sums;
    sums.template add<C.key_warps>(C.key_warps, factor, [&](int w, RowState<float>& state, float(&x)[kEndColumns]) {
      constexpr unsigned kRows = C.tile_q;
      float loaded[2] = {minus_infinity<float>(), 0};
      load_from_shared(piece.state + static_cast<unsigned>(w * kRows * sizeof state), loaded, !warms_icache);
      load_from_shared(piece.sums + static_cast<unsigned>(w * kRows * sums_stride(C) * sizeof(float)), x,
                       !warms_icache);
      state = {loaded[0], loaded[1]};
    });
    return sums;
  }
  __device__ __forceinline__ void post() {
#pragma unroll 1
    for (int n = Base::first_piece(); n < pieces; n += Base::kThreads) {
      if (n >= Base::kThreads) piece = piece_of(n);
      const SummedColumns<float> sums = of_warps();
      store_flagged(piece.columns_to, sums.x[0], sums.x[1], exchanges.mark, !warms_icache);
      store_flagged(piece.columns_to + Posts<C>::kUnitLanes, sums.x[2], sums.x[3], exchanges.mark, !warms_icache);
      store_flagged(piece.state_to, sums.row.top, sums.row.sum, exchanges.mark, !warms_icache && piece.has_state);
    }
  }
  // By a warp. Not really: a rehearsal.
  __device__ __forceinline__ void collect(int unit, bool really) const {
    auto sums = exchanges.collect(unit, really ? work.splits : 0, factor);
    auto place = output;
    if (!really) place.count = 0;
    write_output<C.element, C.fast_decode != 0>(
        work.p, place, really && lane_id() == 0 && Posts<C>::first_column(unit) == 0, this->unit, sums);
  }
};

template <KvConfig C, bool = C.exchanges != 0>
struct SumsOf {
  using Type = CacheSums<C>;
};
template <KvConfig C>
struct SumsOf<C, true> {
  using Type = PostedSums<C>;
};

}  // namespace cuflash
