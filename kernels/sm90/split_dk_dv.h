// Two warpgroups that share 64 keys, where the sums of one head size fill the registers of a thread: one has dV, the
// other dK. dQ has a kernel of its own.
//
//   DvConsumer      P from S(n) | P to the other | issue dV += P^T dO | issue S(n+1) | dV is there | S(n+1) is there
//   DkConsumer   P, dP(n) are there | dS | issue dK += dS^T Q | issue dP(n+1) | dK is there
//
// A thread of one has the same pairs as the thread of that number in the other: P travels as 16 bytes of each, in f16,
// which holds weights of at most 1 to 3 bits more than bf16 does: dS is rounded itself, and twice would be too often.
#pragma once

#include "sm90/key_walk.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct SplitConsumer : KeyWalk<C> {
  using Base = KeyWalk<C>;
  using Base::kSteps, Base::number, Base::count, Base::pipeline, Base::place;
  using typename Base::Pipeline, typename Base::Weights;

  static constexpr Element kHandedOver = Element::f16;

  unsigned lane_weights;  // where this thread's P of the first tile lies

  __device__ SplitConsumer(const Sm90BackwardParams& p, const Pipeline& pipeline)
      : Base(p, pipeline, 0), lane_weights(part_of(pipeline.weights(0), new_thread_id() % kWarpgroupThreads, 0)) {}

  // Of four weights of a thread.
  static constexpr int kPart = kWarpgroupThreads * 16;
  static __device__ __forceinline__ unsigned part_of(unsigned weights, int thread, int step) {
    return weights + step * kPart + thread * 16;
  }
  static __device__ __forceinline__ uint4& part(unsigned address) {
    return *static_cast<uint4*>(__cvta_shared_to_generic(address));
  }

  // Tiles of one kind after the other.
  template <class Group>
  __device__ __forceinline__ void walk_all(Group& sums, typename Base::Scores& s) {
    const int steps = uniform(place().walk.count());
    int step = 0;
    Pass next = pass(0);
#pragma unroll 1
    while (number < count) {
      switch (next) {
        case Pass::full: next = visit_all<Pass::full>(sums, s, step, steps); break;
        case Pass::hidden:
        case Pass::masked: next = visit_all<Pass::masked>(sums, s, step, steps); break;
        case Pass::guarded: next = visit_all<Pass::guarded>(sums, s, step, steps);
      }
      converge();
    }
  }
  // Nothing is gained by hiding all of a tile: another warpgroup waits for it.
  __device__ __forceinline__ Pass pass(int step) const {
    const Pass pass = Base::pass(step);
    return pass == Pass::hidden ? Pass::masked : pass;
  }
  template <Pass kPass, class Group>
  __device__ __forceinline__ Pass visit_all(Group& sums, typename Base::Scores& s, int& step, int steps) {
    Pass next;
#pragma unroll 1
    do {
      const int tile = kPass == Pass::full ? 0 : uniform(place().walk.tile(step));
      if (++step == steps) step = 0;
      next = sums.template visit<kPass>(s, tile, step);
    } while (number < count && next == kPass);
    return next;
  }
};

template <Sm90BackwardConfig C>
struct DvConsumer : SplitConsumer<C> {
  using Base = SplitConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::queries, Base::number, Base::count, Base::buffer;
  using Base::kShared, Base::kSteps;
  using Base::lane_coord, Base::lane_weights;
  using typename Base::Pipeline, typename Base::Scores, typename Base::Weights;

  Accumulator<float> dv[C.dim_v / 8];

  using Base::Base;

  __device__ __forceinline__ void hand_over(const Weights& w) const {
    if (number >= kGradientTiles) named_barrier_sync(Pipeline::weights_read(buffer), Pipeline::kPair);
    const unsigned to = lane_weights + buffer * Pipeline::GradientTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Base::part(to + step * Base::kPart) = {w[step][0], w[step][1], w[step][2], w[step][3]};
    named_barrier_arrive(Pipeline::weights_written(buffer), Pipeline::kPair);
  }
  // Weight of the pair of this lane's key r and a query, which a lane of the same four has handed over.
  __device__ __forceinline__ float handed_over(int query, int r) const {
    const int thread = new_thread_id() / 4 * 4 + query % 8 / 2;
    const unsigned at = Base::part_of(pipeline.weights(buffer), thread, query / 16) + (query / 8 % 2 * 2 + r) * 4;
    return widen<Base::kHandedOver>(*static_cast<const unsigned short*>(__cvta_shared_to_generic(at + query % 2 * 2)));
  }

  // Where other warpgroups need every answer of shared memory, those that are asked for ahead come in their way: LSE before
  // the scores are there cost 4%, delta before dP 1%.
  __device__ __forceinline__ void weigh_rows(Scores& s, int stage) const {
    typename Base::RowValues lse;
    Base::load_lse(lse, stage);
    Base::weigh(s, lse, p.exponent);
  }

  template <Pass kPass>
  __device__ __forceinline__ Pass visit(Scores& s, int tile, int next_step) {
    const int stage = queries.stage;
    const float* stats = pipeline.stats(stage);
    Weights w;
    if constexpr (kPass != Pass::full) Base::hide(s, a, Base::place(), tile);
    if constexpr (kPass == Pass::guarded)
      weigh_any_size<kShared, kPass>(s, stats, lane_coord().column, static_cast<float>(a.scale), p.exponent);
    else weigh_rows(s, stage);
    narrow<Base::kHandedOver>(w, s[0]);
    hand_over(w);
    narrow<C.element>(w, s[0]);
    fence_operands(w);
    Base::wait_for_douts();
    const bool selects = kPass == Pass::guarded && uniform(stats[Base::kFlag] != 0);
    if (selects) {
      __syncwarp();
      Base::select_into(dv, pipeline.dout(stage), [this](int query, int r) { return handed_over(query, r); });
    } else {
      Base::template issue_sums<typename Base::DvProduct>(dv, w, pipeline.dout(stage));
      if constexpr (kPass == Pass::guarded) wgmma_wait<0>();
    }
    if constexpr (kPass == Pass::guarded) fence_operands(dv);
    Base::advance();
    Base::issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<1>();
    fence_operands(w), fence_operands(dv);
    Base::release_queries(stage);
    const Pass next = Base::pass(next_step);
    wgmma_wait<0>();
    fence_operands(s[0]);
    return next;
  }

  __device__ __forceinline__ void walk() {
    Base::wait_for_queries();
    Scores s;
    Base::issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<0>();
    fence_operands(s[0]);
    Base::walk_all(*this, s);
  }
  __device__ __forceinline__ void clear_sums() { Base::clear(dv); }
  __device__ __forceinline__ void store_sums() const { Base::store_rows(p.backward.dv, dv, 1.0f, a.dim_v); }
  __device__ __forceinline__ void run() { Base::run_all(*this); }
};

template <Sm90BackwardConfig C>
struct DkConsumer : SplitConsumer<C> {
  using Base = SplitConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::queries, Base::number, Base::count, Base::buffer;
  using Base::kSteps, Base::lane_weights;
  using typename Base::Pipeline, typename Base::Scores, typename Base::Weights;

  Accumulator<float> dk[C.dim_qk / 8];

  using Base::Base;

  __device__ __forceinline__ void take_over(Weights& w) const {
    named_barrier_sync(Pipeline::weights_written(buffer), Pipeline::kPair);
    const unsigned from = lane_weights + buffer * Pipeline::GradientTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 four = Base::part(from + step * Base::kPart);
      w[step][0] = four.x, w[step][1] = four.y, w[step][2] = four.z, w[step][3] = four.w;
    }
    fence_operands(w);
    // Nobody waits for the last two.
    if (number + kGradientTiles < count) named_barrier_arrive(Pipeline::weights_read(buffer), Pipeline::kPair);
  }
  // Statistics come with queries.
  __device__ __forceinline__ void wait_for_both() const {
    Base::wait_for_queries();
    Base::wait_for_douts();
  }

  template <Pass kPass>
  __device__ __forceinline__ Pass visit(Scores& s, int, int next_step) {
    const int stage = queries.stage;
    Weights w;
    typename Base::RowValues delta;
    take_over(w);
    wgmma_wait<0>();
    fence_operands(s[0]);
    Base::load_delta(delta, stage);
    Base::template differentiate<kPass, Base::kHandedOver>(s, w, delta);
    narrow<C.element>(w, s[0]);
    if (kPass == Pass::guarded && uniform(pipeline.stats(stage)[Base::kFlag] != 0))
      Base::template clear_not_finite<kWarpgroupThreads>(pipeline.q(stage));  // their scores are there: so are weights
    Base::template issue_sums<typename Base::DkProduct>(dk, w, pipeline.q(stage));
    Base::step_on();
    if (number < count) wait_for_both();
    Base::issue_scores(s, pipeline.v(), pipeline.dout(queries.stage));
    wgmma_wait<1>();
    fence_operands(w), fence_operands(dk);
    Base::release_queries(stage);
    return Base::pass(next_step);
  }

  __device__ __forceinline__ void walk() {
    mbarrier_wait(pipeline.v_full(), Base::keys.phase());
    wait_for_both();
    Scores s;
    Base::issue_scores(s, pipeline.v(), pipeline.dout(queries.stage));
    Base::walk_all(*this, s);
    wgmma_wait<0>();
    fence_operands(s[0]);
  }
  __device__ __forceinline__ void clear_sums() { Base::clear(dk); }
  __device__ __forceinline__ void store_sums() const {
    Base::store_rows(p.backward.dk, dk, static_cast<float>(a.scale), a.dim_qk);
  }
  __device__ __forceinline__ void run() { Base::run_all(*this); }
};

}  // namespace cuflash
