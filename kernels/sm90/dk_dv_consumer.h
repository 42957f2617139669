// A warpgroup that has 64 keys: S^T, P, dP^T and dS^T of one tile of queries after the other, and the sums of dK and dV.
//
//   P from S(n) | issue dP | issue dV += P^T dO | dP is there | dS | dS to shared memory, for dQ | issue dK += dS^T Q |
//   dV is there | issue S(n+1) | dK is there: the queries are free | S(n+1) is there
//
// The assembler starts dP when it has read half of S, so that exponentials are computed under dP. 48 registers X, Y, Z of
// 16 each serve all of it: S is in Y and Z, dP in X and Y, P in Z, dS in X, and S(n+1) in Y and Z again.
#pragma once

#include "sm90/key_walk.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct DkDvConsumer : KeyWalk<C> {
  using Base = KeyWalk<C>;
  using Base::a, Base::p, Base::pipeline, Base::group, Base::queries, Base::number, Base::count, Base::keys;
  using Base::advance, Base::issue_scores, Base::issue_sums, Base::pass, Base::place;
  using Base::E, Base::kFlag, Base::kShared, Base::lane_coord, Base::release_queries, Base::wait_for_reader;
  using Base::hide, Base::write_gradient;
  using typename Base::DkProduct, typename Base::DvProduct, typename Base::Pipeline;
  using typename Base::Scores, typename Base::Weights;

  using typename Base::RowValues;
  // Delta is read while dP is under way. To widen weights of f16 takes registers that these would have.
  static constexpr bool kEarlyDelta = C.element == Element::bf16;

  Accumulator<float> dk[C.dim_qk / 8], dv[C.dim_v / 8];

  using Base::Base;

  // Scores of the tile that is there, with nothing to do meanwhile.
  __device__ __forceinline__ void multiply_scores(Scores& s) const {
    issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<0>();
    fence_operands(s[0]);
  }

  // One tile of queries that is there with its scores; at the end the next one is. Returns how that is visited.
  __device__ __forceinline__ Pass visit(Scores& s, RowValues& lse, bool masked, int step, int next_step) {
    const int stage = queries.stage;
    Weights w, ds;
    Scores dp;
    RowValues delta;
    Base::wait_for_douts();
    if (masked) hide(s, a, place(), uniform(place().walk.tile(step)));
    Base::weigh_and_narrow(w, s, lse, p.exponent);
    fence_operands(w);
    issue_scores(dp, pipeline.v(), pipeline.dout(stage));
    Base::template issue_sums<DvProduct>(dv, w, pipeline.dout(stage));
    if (kEarlyDelta) Base::load_delta(delta, stage);
    wgmma_wait<1>();
    fence_operands(dp[0]);
    if (!kEarlyDelta) Base::load_delta(delta, stage);
    Base::differentiate_and_narrow(ds, dp, w, delta);
    if (masked) Base::hide_unweighted(ds, w);
    fence_operands(ds);
    Base::template issue_sums<DkProduct>(dk, ds, pipeline.q(stage));
    wait_for_reader();
    write_gradient(ds);
    wgmma_wait<1>();
    fence_operands(w), fence_operands(dv);
    // Behind the last one nobody asks for these scores: products without a branch.
    advance();
    issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<1>();
    fence_operands(ds), fence_operands(dk);
    release_queries(stage);
    Base::load_lse(lse, queries.stage);
    const Pass next = pass(next_step);
    wgmma_wait<0>();
    fence_operands(s[0]);
    return next;
  }
  // The same of one that holds something that is not finite, and not for everybody, or LSE that are large: one product at a
  // time.
  __device__ __forceinline__ void visit_guarded(Scores& s, int tile) {
    const int stage = queries.stage;
    const float* stats = pipeline.stats(stage);
    const bool selects = uniform(stats[kFlag] != 0);
    Weights w;
    hide(s, a, place(), tile);
    weigh_any_size<kShared, Pass::guarded>(s, stats, lane_coord().column, static_cast<float>(a.scale), p.exponent);
    narrow<C.element>(w, s[0]);
    fence_operands(w);
    if (selects) Base::template clear_not_finite<C.warpgroups * kWarpgroupThreads>(pipeline.q(stage));
    Base::wait_for_douts();
    issue_scores(s, pipeline.v(), pipeline.dout(stage));
    wgmma_wait<0>();
    fence_operands(s[0]);
    wait_for_reader();
    if (selects) {
      // The weights are where dS will be.
      Base::store(w);
      __syncwarp();
      const auto weights = pipeline.gradient(Base::gradient_buffer());
      Base::select_into(dv, pipeline.dout(stage), [=](int query, int r) {
        const int key = lane_coord().row + 8 * r;
        const unsigned at = weights.piece(query, key) + key % 8 * 2;
        return widen<E>(*static_cast<const unsigned short*>(__cvta_shared_to_generic(at)));
      });
      __syncwarp();
    } else {
      Base::template issue_sums<DvProduct>(dv, w, pipeline.dout(stage));
      wgmma_wait<0>();
      fence_operands(dv);
    }
    RowValues delta;
    Base::load_delta(delta, stage);
    Base::template differentiate<Pass::guarded>(s, w, delta);
    narrow<C.element>(w, s[0]);
    write_gradient(w);
    Base::template issue_sums<DkProduct>(dk, w, pipeline.q(stage));
    wgmma_wait<0>();
    fence_operands(dk);
    release_queries(stage);
    advance();
    multiply_scores(s);
  }

  // The same of one that sees none of this warpgroup's keys.
  __device__ __forceinline__ void visit_hidden(Scores& s) {
    const int stage = queries.stage;
    Base::wait_for_douts();
    wait_for_reader();
    write_gradient(Weights{});
    release_queries(stage);
    advance();
    multiply_scores(s);
  }

  // As many tiles as there are that are seen.
  __device__ __forceinline__ Pass visit_all(Scores& s, Pass next, int& step, int steps) {
    RowValues lse;
    Base::load_lse(lse, queries.stage);
#pragma unroll 1
    do {
      const int this_step = step;
      if (++step == steps) step = 0;
      next = visit(s, lse, next == Pass::masked, this_step, step);
    } while (number < count && next <= Pass::masked);
    return next;
  }

  __device__ __forceinline__ void walk() {
    const int steps = uniform(place().walk.count());
    Base::wait_for_queries();
    Scores s;
    multiply_scores(s);
    mbarrier_wait(pipeline.v_full(), keys.phase());
    int step = 0;
    Pass next = pass(0);
#pragma unroll 1
    while (number < count) {
      if (next <= Pass::masked) {
        next = visit_all(s, next, step, steps);
      } else {
        if (next == Pass::hidden) visit_hidden(s);
        else visit_guarded(s, uniform(place().walk.tile(step)));
        if (++step == steps) step = 0;
        next = pass(step);
      }
      converge();
    }
  }

  __device__ __forceinline__ void clear_sums() { Base::clear(dk), Base::clear(dv); }
  __device__ __forceinline__ void store_sums() const {
    Base::store_rows(p.backward.dk, dk, static_cast<float>(a.scale), a.dim_qk);
    Base::store_rows(p.backward.dv, dv, 1.0f, a.dim_v);
  }
  __device__ __forceinline__ void run() { Base::run_all(*this); }
};

}  // namespace cuflash
