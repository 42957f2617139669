// Consumers of the backward kernel for head sizes where dK or dV alone fills a thread's registers. Two warpgroups share
// 64 keys: one accumulates dV, the other dK. A separate kernel computes dQ.
//
//   DvConsumer   P from S(n) | send P | issue dV += P^T dO | issue S(n+1) | wait dV | wait S(n+1)
//   DkConsumer   receive P, wait dP(n) | dS | issue dK += dS^T Q | issue dP(n+1) | wait dK
//
// Threads of equal index hold the same pairs, so P is exchanged as 16-byte vectors per thread, in the type of the
// inputs, as head sizes up to 128 keep it. f16 has 3 bits more than bf16 for probabilities up to 1, but cannot
// represent those below 3e-8. They are all that contributes to a gradient if one probability of a row is 1 and its dS
// is 0.
#pragma once

#include "sm90/backward/key_consumer.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct SplitConsumer : KeyConsumer<C> {
  using Base = KeyConsumer<C>;
  using Base::kSteps, Base::iteration, Base::count, Base::pipeline, Base::task;
  using typename Base::Pipeline, typename Base::OperandA, typename Base::Options;

  unsigned lane_p;  // shared address of this thread's P in the first buffer

  __device__ SplitConsumer(const Sm90BackwardParams& p, const Pipeline& pipeline)
      : Base(p, pipeline, 0), lane_p(slot_address(pipeline.p_tile(0), new_thread_id() % kWarpgroupThreads, 0)) {}

  // A slot holds one 16-byte vector of every thread.
  static constexpr int kSlotBytes = kWarpgroupThreads * 16;
  static __device__ __forceinline__ unsigned slot_address(unsigned p, int thread, int step) {
    return p + step * kSlotBytes + thread * 16;
  }
  static __device__ __forceinline__ uint4& slot(unsigned address) {
    return *static_cast<uint4*>(__cvta_shared_to_generic(address));
  }

  // Processes all query tiles. Consecutive tiles of one mode share a loop that is compiled for that mode.
  template <class Derived>
  __device__ __forceinline__ void mainloop_all(Derived& derived, typename Base::Scores& s) {
    const int steps = uniform(task().visited.count());
    int step = 0;
    TileMode next = mode(0);
#pragma unroll 1
    while (iteration < count) {
      switch (next) {
        case TileMode::full: next = visit_all<TileMode::full>(derived, s, step, steps); break;
        case TileMode::hidden:
        case TileMode::masked: next = visit_all<TileMode::masked>(derived, s, step, steps); break;
        case TileMode::guarded: next = visit_all<TileMode::guarded>(derived, s, step, steps);
      }
      converge();
    }
  }
  // Skipping a hidden tile gains nothing: the other warpgroup waits for its P.
  __device__ __forceinline__ TileMode mode(int step) const {
    const TileMode mode = Base::mode(step);
    return mode == TileMode::hidden ? TileMode::masked : mode;
  }
  template <TileMode kMode, class Derived>
  __device__ __forceinline__ TileMode visit_all(Derived& derived, typename Base::Scores& s, int& step, int steps) {
    TileMode next;
#pragma unroll 1
    do {
      const int tile = kMode == TileMode::full ? 0 : uniform(Base::tile_of(step));
      if (++step == steps) step = 0;
      next = derived.template visit<kMode>(s, tile, step);
    } while (iteration < count && next == kMode);
    return next;
  }
};

template <Sm90BackwardConfig C>
struct DvConsumer : SplitConsumer<C> {
  using Base = SplitConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::queries, Base::iteration, Base::count, Base::buffer;
  using Base::kPortable, Base::kSteps;
  using Base::lane_coord, Base::lane_p;
  using typename Base::Pipeline, typename Base::Scores, typename Base::OperandA, typename Base::Options;

  Accumulator<float> dv[C.dim_v / 8];

  using Base::Base;

  __device__ __forceinline__ void send_p(const OperandA& probs) const {
    wait_p_free();
    write_p(probs);
    signal_p();
  }
  __device__ __forceinline__ void wait_p_free() const {
    if (iteration >= kDsStages) named_barrier_sync(Pipeline::p_read(buffer), Pipeline::kPair);
  }
  __device__ __forceinline__ void write_p(const OperandA& probs) const {
    const unsigned to = lane_p + buffer * Pipeline::DsTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      Base::slot(to + step * Base::kSlotBytes) = {probs[step][0], probs[step][1], probs[step][2], probs[step][3]};
  }
  __device__ __forceinline__ void signal_p() const {
    named_barrier_arrive(Pipeline::p_written(buffer), Pipeline::kPair);
  }
  // P of the lane's key r and a query, which a lane of the same quad has sent.
  __device__ __forceinline__ float sent_p(int query, int r) const {
    const int thread = new_thread_id() / 4 * 4 + query % 8 / 2;
    const unsigned address =
        Base::slot_address(pipeline.p_tile(buffer), thread, query / 16) + (query / 8 % 2 * 2 + r) * 4;
    return widen<C.element>(*static_cast<const unsigned short*>(__cvta_shared_to_generic(address + query % 2 * 2)));
  }

  // Loads LSE only when it is needed. Early loads of shared memory compete with those of the other warpgroups: loading
  // LSE before S is complete costs 4%, loading delta before dP 1%.
  __device__ __forceinline__ void exponentiate_rows(Scores& s, int stage) const {
    typename Base::RowValues lse;
    Base::load_lse(lse, stage);
    Base::exponentiate(s, lse, p.scale_log2);
  }

  __device__ __forceinline__ void accumulate_selected() {
    Base::accumulate_selected(dv, pipeline.dout(queries.stage), [this](int query, int r) { return sent_p(query, r); });
  }
  // Computes P, and sends the factors of dS to the other warpgroup. If dV must be accumulated with a select, that
  // happens here, before the factors are written: P takes their buffer.
  template <TileMode kMode>
  __device__ __forceinline__ void exponentiate_options(OperandA& probs, Scores& s, int tile) {
    constexpr bool kSelects = Options::kMasksP || kMode == TileMode::guarded;
    OperandA sent;
    const auto keep = [&](int step, const unsigned(&factors)[4]) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sent[step][n] = factors[n];
    };
    const unsigned kept = Base::kept_pairs();
    unsigned seen = Base::tensor_mask();
    if constexpr (kSelects && kMode != TileMode::full) seen &= Base::visible_pairs(a, Base::task(), tile);
    if constexpr (kMode == TileMode::guarded) {
      Base::template exponentiate_pairs<C.element, kSelects>(probs, s, Base::lane_bias(), seen, kept,
                                                             Base::guarded_exponents(), keep);
    } else if constexpr (Options::kPolynomialSoftcap) {
      const CapDerivative& cap = p.factors.cap;
      typename Base::RowValues lse;
      Base::load_lse(lse, queries.stage);
      if (Base::in_cap_range(s, cap)) {
        if constexpr (kMode != TileMode::full) Base::hide(s, a, Base::task(), tile, cap.hidden);
        Base::template exponentiate_capped<C.element, true>(probs, sent, s, lse, cap, ~0u);
      } else {
        if constexpr (kMode != TileMode::full) seen = Base::visible_pairs(a, Base::task(), tile);
        Base::template exponentiate_capped<C.element, false>(probs, sent, s, lse, cap, seen);
      }
    } else {
      typename Base::RowState rows;
      Base::load_lse(rows.lse, queries.stage);
      rows.add_options(Base::step_info());
      Options::apply_softcap(s[0], a);
      if (!kSelects && kMode != TileMode::full) Base::hide(s, a, Base::task(), tile);
      Base::correct_alibi(s);
      Base::template exponentiate_pairs<C.element, kSelects>(
          probs, s, Base::lane_bias(), seen, kept, typename Base::Exponents{p, rows, Base::step_info()}, keep);
    }
    if (kMode != TileMode::guarded || !uniform(pipeline.stats(queries.stage)[Base::kFlag] != 0)) return send_p(sent);
    wait_p_free();
    write_p(probs);
    __syncwarp();
    Base::wait_for_douts();
    accumulate_selected();
    __syncwarp();
    write_p(sent);
    signal_p();
  }

  template <TileMode kMode>
  __device__ __forceinline__ TileMode visit(Scores& s, int tile, int next_step) {
    const int stage = queries.stage;
    const float* stats = pipeline.stats(stage);
    OperandA probs;
    if constexpr (C.options == 0) {
      if constexpr (kMode != TileMode::full) Base::hide(s, a, Base::task(), tile);
      if constexpr (kMode == TileMode::guarded)
        exponentiate_any_size<kPortable, kMode>(s, stats, lane_coord().column, static_cast<float>(a.scale),
                                                p.scale_log2);
      else exponentiate_rows(s, stage);
      narrow<C.element>(probs, s[0]);
      send_p(probs);
    } else {
      exponentiate_options<kMode>(probs, s, tile);
    }
    fence_operands(probs);
    Base::wait_for_douts();
    const bool use_select = kMode == TileMode::guarded && uniform(stats[Base::kFlag] != 0);
    if (use_select) {
      if constexpr (C.options == 0) {
        __syncwarp();
        accumulate_selected();
      }
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
  __device__ __forceinline__ void store_accumulators() const {
    Base::store_rows(p.backward.dv, p.backward.dv_accum, dv, Base::dv_factor(), a.dim_v);
  }
  __device__ __forceinline__ void run() { Base::run_persistent(*this); }
};

template <Sm90BackwardConfig C>
struct DkConsumer : SplitConsumer<C> {
  using Base = SplitConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::queries, Base::iteration, Base::count, Base::buffer;
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
    // The last two buffers are not reused.
    if (iteration + kDsStages < count) named_barrier_arrive(Pipeline::p_read(buffer), Pipeline::kPair);
  }
  // Replaces the factors by dS.
  __device__ __forceinline__ void differentiate_options(OperandA& factors, const Scores& dp, unsigned lane_delta,
                                                        bool masked) const {
    Base::template differentiate_pairs<C.element>(factors, dp, lane_delta, p.factors.keep,
                                                  masked || Base::Options::kMayMaskAnyPair,
                                                  [&](int step, unsigned(&four)[4]) {
#pragma unroll
                                                    for (int n = 0; n < 4; ++n) four[n] = factors[step][n];
                                                  });
  }
  // Waits for Q, with which the row statistics arrive, and for dO.
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
    if constexpr (C.options == 0) {
      Base::load_delta(delta, stage);
      Base::template differentiate<kMode, C.element>(s, probs, delta);
      narrow<C.element>(probs, s[0]);
    } else {
      differentiate_options(probs, s, Base::lane_delta(stage), kMode != TileMode::full);
    }
    if (kMode == TileMode::guarded && uniform(pipeline.stats(stage)[Base::kFlag] != 0))
      Base::template zero_not_finite<kWarpgroupThreads>(
          pipeline.q(stage));  // the P of this tile was received, so S has been computed from Q
    Base::template issue_accumulate<typename Base::DkProduct>(dk, probs, pipeline.q(stage));
    Base::advance_stage();
    if (iteration < count) wait_for_both();
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
    Base::store_rows(p.backward.dk, p.backward.dk_accum, dk, static_cast<float>(a.scale), a.dim_qk);
  }
  __device__ __forceinline__ void run() { Base::run_persistent(*this); }
};

}  // namespace cuflash
