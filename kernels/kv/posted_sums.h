// The end of splits that run at one time: every one of them posts what its key warps have summed, and adds up a part of the
// rows over all splits. Behind the last keys nobody waits for a fence, for an atomic, or for one CTA that does it all.
//
//   warps that compute   share sums in shared memory | add them up, post them | units, if there are many
//   copying warp         rehearse both | units: until all splits have posted, add up, output
#pragma once

#include "kv/posts.h"
#include "kv/sums.h"

namespace cuflash {

template <CacheConfig C>
struct PostedSums : CacheSums<C> {
  using Base = CacheSums<C>;
  using Base::factor, Base::output, Base::rehearses, Base::work, Base::written;
  using Work = typename Base::Work;
  // A numbered barrier, as those of BoxedKeys: the copying warp waits for the others there, and not they for it.
  static constexpr int kShared = 4;
  static constexpr int kWarps = Base::kThreads / 32;

  Posts<C> posts;
  // Of what a thread posts first.
  struct Piece {
    unsigned sums, state;  // of the first key warp, in shared memory
    Post *columns_to, *state_to;
    bool has_state;
  };
  Piece piece;
  int pieces;

  __device__ explicit PostedSums(const Work& work, bool rehearses = false) : Base(work, rehearses) {}

  __device__ __forceinline__ Piece piece_of(int n) const {
    const int row = Base::row_of(n), column = Base::column_of(n), split = work.at.split;
    const int unit = Posts<C>::unit_of(row, column), lane = column % Posts<C>::kUnitColumns / kEndColumns;
    return {shared_address(Base::warp_sums(0, row) + column), shared_address(Base::warp_states(0) + row),
            posts.columns(unit, split, lane), posts.state(unit, split), lane == 0};
  }
  __device__ __forceinline__ OutputPlace<C.element> output_of_unit(int unit) const {
    auto found = OutputPlace<C.element>::of(work.p, work.sequence, work.at, work.rows.first + Posts<C>::row_of(unit),
                                            Posts<C>::first_column(unit) + Posts<C>::lane() * kEndColumns);
    if (Posts<C>::turn() != 0) found.count = 0;
    return found;
  }
  // The copying warp has a CTA's first unit: the others come to theirs when it is there already.
  __device__ int first_unit() const { return work.at.split + work.splits * (rehearses ? 0 : 1 + Work::warp()); }
  __device__ int units() const { return written * Posts<C>::kRowUnits; }

  __device__ __forceinline__ void look_at_ticket() const {}
  __device__ __forceinline__ void prepare() {
    if (work.splits == 1) return Base::prepare();
    Base::find_factors();
    posts = Posts<C>::of(work.p, work.at);
    find_now(posts.states), find_now(posts.sums), find_now(posts.mark);
    pieces = Base::pieces();
    piece = piece_of(Base::first_piece());
    find_now(pieces), find_now(piece.sums), find_now(piece.state);
    find_now(piece.columns_to), find_now(piece.state_to);
    if (!rehearses && Work::warp() == 0 && work.at.split < units()) posts.ask_for(work.at.split);
    if (!rehearses) return;
    output = output_of_unit(first_unit() < units() ? first_unit() : 0);
    find_now(output.index), find_now(output.lse_index);
  }

  // By all threads that compute, behind a barrier: all sums are shared. And by the copying warp before that.
  __device__ __forceinline__ void add() {
    if (work.splits == 1) return Base::add();
    if (!rehearses && work.at.split < units()) numbered_barrier_arrive(kShared, Base::kThreads + 32);
    post();
    int unit = first_unit();
    bool really = !rehearses;
#pragma unroll 1
    while (unit < units()) {
      if (!rehearses || unit != first_unit()) output = output_of_unit(unit);
      else if (really) numbered_barrier_wait(kShared, Base::kThreads + 32);
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
      load_from_shared(piece.state + static_cast<unsigned>(w * kRows * sizeof state), loaded, !rehearses);
      load_from_shared(piece.sums + static_cast<unsigned>(w * kRows * sums_stride(C) * sizeof(float)), x, !rehearses);
      state = {loaded[0], loaded[1]};
    });
    return sums;
  }
  __device__ __forceinline__ void post() {
#pragma unroll 1
    for (int n = Base::first_piece(); n < pieces; n += Base::kThreads) {
      if (n >= Base::kThreads) piece = piece_of(n);
      const SummedColumns<float> sums = of_warps();
      send_post(piece.columns_to, sums.x[0], sums.x[1], posts.mark, !rehearses);
      send_post(piece.columns_to + Posts<C>::kUnitLanes, sums.x[2], sums.x[3], posts.mark, !rehearses);
      send_post(piece.state_to, sums.row.top, sums.row.sum, posts.mark, !rehearses && piece.has_state);
    }
  }
  // By a warp. Not really: a rehearsal.
  __device__ __forceinline__ void collect(int unit, bool really) const {
    auto sums = posts.collect(unit, really ? work.splits : 0, factor);
    auto place = output;
    if (!really) place.count = 0;
    write_output<C.element, C.plain != 0>(work.p, place, really && lane_id() == 0 && Posts<C>::first_column(unit) == 0,
                                          this->unit, sums);
  }
};

template <CacheConfig C, bool = C.posts != 0>
struct SumsOf {
  using Type = CacheSums<C>;
};
template <CacheConfig C>
struct SumsOf<C, true> {
  using Type = PostedSums<C>;
};

}  // namespace cuflash
