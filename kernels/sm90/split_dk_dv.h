// Two warpgroups that share 64 keys, where the sums of one head size fill the registers of a thread: one has dV, the
// other dK. dQ has a kernel of its own.
//
//   DvConsumer      P from S(n) | P to the other | issue dV += P^T dO | issue S(n+1) | dV is there | S(n+1) is there
//   DkConsumer   P, dP(n) are there | dS | issue dK += dS^T Q | issue dP(n+1) | dK is there
//
// A thread of one has the same pairs as the thread of that number in the other: P travels as 16 bytes of each, in f16,
// which holds weights of at most 1 to 3 bits more than bf16 does: dS is rounded itself, and twice would be too often.
#pragma once

#include "sm90/key_consumer.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct SplitConsumer : KeyConsumer<C> {
  using Base = KeyConsumer<C>;
  using Base::kSteps, Base::number, Base::count, Base::pipeline, Base::task;
  using typename Base::Pipeline, typename Base::OperandA;

  static constexpr Element kExchanged = Element::f16;

  unsigned lane_p;  // where this thread's P of the first tile lies

  __device__ SplitConsumer(const Sm90BackwardParams& p, const Pipeline& pipeline)
      : Base(p, pipeline, 0), lane_p(slot_address(pipeline.p_tile(0), new_thread_id() % kWarpgroupThreads, 0)) {}

  // Of four weights of a thread.
  static constexpr int kSlotBytes = kWarpgroupThreads * 16;
  static __device__ __forceinline__ unsigned slot_address(unsigned p, int thread, int step) {
    return p + step * kSlotBytes + thread * 16;
  }
  static __device__ __forceinline__ uint4& slot(unsigned address) {
    return *static_cast<uint4*>(__cvta_shared_to_generic(address));
  }

  // Tiles of one kind after the other.
  template <class Derived>
  __device__ __forceinline__ void mainloop_all(Derived& derived, typename Base::Scores& s) {
    const int steps = uniform(task().visited.count());
    int step = 0;
    TileMode next = mode(0);
#pragma unroll 1
    while (number < count) {
      switch (next) {
        case TileMode::full: next = visit_all<TileMode::full>(derived, s, step, steps); break;
        case TileMode::hidden:
        case TileMode::masked: next = visit_all<TileMode::masked>(derived, s, step, steps); break;
        case TileMode::guarded: next = visit_all<TileMode::guarded>(derived, s, step, steps);
      }
      converge();
    }
  }
  // Nothing is gained by hiding all of a tile: another warpgroup waits for it.
  __device__ __forceinline__ TileMode mode(int step) const {
    const TileMode mode = Base::mode(step);
    return mode == TileMode::hidden ? TileMode::masked : mode;
  }
  template <TileMode kMode, class Derived>
  __device__ __forceinline__ TileMode visit_all(Derived& derived, typename Base::Scores& s, int& step, int steps) {
    TileMode next;
#pragma unroll 1
    do {
      const int tile = kMode == TileMode::full ? 0 : uniform(task().visited.tile(step));
      if (++step == steps) step = 0;
      next = derived.template visit<kMode>(s, tile, step);
    } while (number < count && next == kMode);
    return next;
  }
};

template <Sm90BackwardConfig C>
struct DvConsumer : SplitConsumer<C> {
  using Base = SplitConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::queries, Base::number, Base::count, Base::buffer;
  using Base::kShared, Base::kSteps;
  using Base::lane_coord, Base::lane_p;
  using typename Base::Pipeline, typename Base::Scores, typename Base::OperandA;

  Accumulator<float> dv[C.dim_v / 8];

  using Base::Base;

  __device__ __forceinline__ void send_p(const OperandA& probs) const {
    if (number >= kDsStages) named_barrier_sync(Pipeline::p_read(buffer), Pipeline::kPair);
    const unsigned to = lane_p + buffer * Pipeline::DsTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Base::slot(to + step * Base::kSlotBytes) = {probs[step][0], probs[step][1], probs[step][2], probs[step][3]};
    named_barrier_arrive(Pipeline::p_written(buffer), Pipeline::kPair);
  }
  // Weight of the pair of this lane's key r and a query, which a lane of the same four has handed over.
  __device__ __forceinline__ float sent_p(int query, int r) const {
    const int thread = new_thread_id() / 4 * 4 + query % 8 / 2;
    const unsigned address =
        Base::slot_address(pipeline.p_tile(buffer), thread, query / 16) + (query / 8 % 2 * 2 + r) * 4;
    return widen<Base::kExchanged>(
        *static_cast<const unsigned short*>(__cvta_shared_to_generic(address + query % 2 * 2)));
  }

  // Where other warpgroups need every answer of shared memory, those that are asked for ahead come in their way: LSE before
  // the scores are there cost 4%, delta before dP 1%.
  __device__ __forceinline__ void exponentiate_rows(Scores& s, int stage) const {
    typename Base::RowValues lse;
    Base::load_lse(lse, stage);
    Base::exponentiate(s, lse, p.scale_log2);
  }

  template <TileMode kMode>
  __device__ __forceinline__ TileMode visit(Scores& s, int tile, int next_step) {
    const int stage = queries.stage;
    const float* stats = pipeline.stats(stage);
    OperandA probs;
    if constexpr (kMode != TileMode::full) Base::hide(s, a, Base::task(), tile);
    if constexpr (kMode == TileMode::guarded)
      exponentiate_any_size<kShared, kMode>(s, stats, lane_coord().column, static_cast<float>(a.scale), p.scale_log2);
    else exponentiate_rows(s, stage);
    narrow<Base::kExchanged>(probs, s[0]);
    send_p(probs);
    narrow<C.element>(probs, s[0]);
    fence_operands(probs);
    Base::wait_for_douts();
    const bool selects = kMode == TileMode::guarded && uniform(stats[Base::kFlag] != 0);
    if (selects) {
      __syncwarp();
      Base::accumulate_selected(dv, pipeline.dout(stage), [this](int query, int r) { return sent_p(query, r); });
    } else {
      Base::template issue_accumulate<typename Base::DvProduct>(dv, probs, pipeline.dout(stage));
      if constexpr (kMode == TileMode::guarded) wgmma_wait<0>();
    }
    if constexpr (kMode == TileMode::guarded) fence_operands(dv);
    Base::advance();
    Base::issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<1>();
    fence_operands(probs), fence_operands(dv);
    Base::release_queries(stage);
    const TileMode next = Base::mode(next_step);
    wgmma_wait<0>();
    fence_operands(s[0]);
    return next;
  }

  __device__ __forceinline__ void mainloop() {
    Base::wait_for_queries();
    Scores s;
    Base::issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<0>();
    fence_operands(s[0]);
    Base::mainloop_all(*this, s);
  }
  __device__ __forceinline__ void clear_accumulators() { Base::clear(dv); }
  __device__ __forceinline__ void store_accumulators() const { Base::store_rows(p.backward.dv, dv, 1.0f, a.dim_v); }
  __device__ __forceinline__ void run() { Base::run_persistent(*this); }
};

template <Sm90BackwardConfig C>
struct DkConsumer : SplitConsumer<C> {
  using Base = SplitConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::queries, Base::number, Base::count, Base::buffer;
  using Base::kSteps, Base::lane_p;
  using typename Base::Pipeline, typename Base::Scores, typename Base::OperandA;

  Accumulator<float> dk[C.dim_qk / 8];

  using Base::Base;

  __device__ __forceinline__ void receive_p(OperandA& probs) const {
    named_barrier_sync(Pipeline::p_written(buffer), Pipeline::kPair);
    const unsigned from = lane_p + buffer * Pipeline::DsTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 four = Base::slot(from + step * Base::kSlotBytes);
      probs[step][0] = four.x, probs[step][1] = four.y, probs[step][2] = four.z, probs[step][3] = four.w;
    }
    fence_operands(probs);
    // Nobody waits for the last two.
    if (number + kDsStages < count) named_barrier_arrive(Pipeline::p_read(buffer), Pipeline::kPair);
  }
  // Statistics come with queries.
  __device__ __forceinline__ void wait_for_both() const {
    Base::wait_for_queries();
    Base::wait_for_douts();
  }

  template <TileMode kMode>
  __device__ __forceinline__ TileMode visit(Scores& s, int, int next_step) {
    const int stage = queries.stage;
    OperandA probs;
    typename Base::RowValues delta;
    receive_p(probs);
    wgmma_wait<0>();
    fence_operands(s[0]);
    Base::load_delta(delta, stage);
    Base::template differentiate<kMode, Base::kExchanged>(s, probs, delta);
    narrow<C.element>(probs, s[0]);
    if (kMode == TileMode::guarded && uniform(pipeline.stats(stage)[Base::kFlag] != 0))
      Base::template zero_not_finite<kWarpgroupThreads>(pipeline.q(stage));  // their scores are there: so are weights
    Base::template issue_accumulate<typename Base::DkProduct>(dk, probs, pipeline.q(stage));
    Base::advance_stage();
    if (number < count) wait_for_both();
    Base::issue_scores(s, pipeline.v(), pipeline.dout(queries.stage));
    wgmma_wait<1>();
    fence_operands(probs), fence_operands(dk);
    Base::release_queries(stage);
    return Base::mode(next_step);
  }

  __device__ __forceinline__ void mainloop() {
    mbarrier_wait(pipeline.v_full(), Base::keys.phase());
    wait_for_both();
    Scores s;
    Base::issue_scores(s, pipeline.v(), pipeline.dout(queries.stage));
    Base::mainloop_all(*this, s);
    wgmma_wait<0>();
    fence_operands(s[0]);
  }
  __device__ __forceinline__ void clear_accumulators() { Base::clear(dk); }
  __device__ __forceinline__ void store_accumulators() const {
    Base::store_rows(p.backward.dk, dk, static_cast<float>(a.scale), a.dim_qk);
  }
  __device__ __forceinline__ void run() { Base::run_persistent(*this); }
};

}  // namespace cuflash
