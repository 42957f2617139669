// Consumer warpgroup of the backward kernel: S^T, P, dP^T and dS^T of 64 keys against one query tile after the other,
// with dK and dV in registers.
//
//   P from S(n) | issue dP | issue dV += P^T dO | wait dP | dS | dS to shared memory for dQ | issue dK += dS^T Q |
//   wait dV | issue S(n+1) | wait dK, release Q and dO | wait S(n+1)
//
// In a kernel with a loader, dS goes to shared memory after S(n+1) is issued.
//
// ptxas starts dP once half of S has been read, so that exponentials overlap with dP. Three sets X, Y, Z of 16
// registers hold everything: S is in Y and Z, dP in X and Y, P in Z, dS in X, and S(n+1) in Y and Z again.
#pragma once

#include "sm90/backward/key_consumer.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct DkDvConsumer : KeyConsumer<C> {
  using Base = KeyConsumer<C>;
  using Base::a, Base::p, Base::pipeline, Base::group, Base::queries, Base::iteration, Base::count, Base::keys;
  using Base::advance, Base::issue_scores, Base::issue_accumulate, Base::mode, Base::task;
  using Base::E, Base::kFlag, Base::kPortable, Base::lane_coord, Base::release_queries, Base::wait_ds_free;
  using Base::hide, Base::write_ds;
  using typename Base::DkProduct, typename Base::DvProduct, typename Base::Pipeline;
  using typename Base::Scores, typename Base::OperandA, typename Base::Options;

  using typename Base::RowState, typename Base::RowValues;
  // Load delta while dP runs. In f16 the conversion of P to f32 needs the registers that delta would occupy.
  static constexpr bool kEarlyDelta = C.element == Element::bf16 && !Options::kHasFactor;
  // Load the mask while S runs. Softcap and dropout leave no register for it.
  static constexpr bool kEarlyMask = Options::kHasMask && !Options::kHasFactor;
  // Issue S of the next tile before the hand-over of dS. With a separate warpgroup for dQ that is 0.3 to 0.7% faster.
  // Without one (D = 64) it is 1.7% slower, because the producer, which loads and computes dQ, waits for dS.
  static constexpr bool kScoresFirst = has_loader(C);

  // Keep the factors of dS in the buffer of dS while dP is computed. With kPolynomialSoftcap there are registers for
  // them.
  static constexpr bool kFactorsInBuffer = Options::kHasFactor && !Options::kPolynomialSoftcap;

  // Warpgroups issue dP and dV in a fixed order. The tensor cores would otherwise serve all of them at once, and every
  // warpgroup would wait for dP until those of the others are nearly done, too. Of three warpgroups, which have half the
  // columns, the next one issues dP before this one issues dV.
  using Turn = PingPong<(C.warpgroups > 1), C.warpgroups, Pipeline::kTurnBarrier>;
  static constexpr bool kPassesAfterDp = C.warpgroups == 3;
  // With kPolynomialSoftcap, dK and the next S in the same order, too: 2% faster. With bias or mask that is slower.
  using KeyTurn = PingPong<Options::kPolynomialSoftcap && C.warpgroups == 2, 2, Pipeline::kKeyTurnBarrier>;

  Accumulator<float> dk[C.dim_qk / 8], dv[C.dim_v / 8];

  using Base::Base;

  // Computes S of the current stage and waits for it.
  __device__ __forceinline__ void compute_scores(Scores& s) const {
    issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    wgmma_wait<0>();
    fence_operands(s[0]);
  }

  // Loads what the exponents need, while S is computed.
  __device__ __forceinline__ void load_rows(RowState& rows) const {
    Base::load_lse(rows.lse, queries.stage);
    if constexpr (Options::kAffineAlibi) rows.add_options(Base::step_info());
    if constexpr (Options::kHasDropout) rows.kept = Base::kept_pairs();
    if constexpr (kEarlyMask) rows.shown = Base::tensor_mask();
  }
  // Computes P of a tile and the factors of dS, with kPolynomialSoftcap.
  __device__ __forceinline__ void exponentiate_capped(OperandA& probs, OperandA& factors, Scores& s,
                                                      const RowState& rows, bool masked, int step) const {
    const CapDerivative& cap = p.factors.cap;
    if (Base::in_cap_range(s, cap)) {
      if (masked) hide(s, a, task(), uniform(task().visited.tile(step)), cap.hidden);
      Base::template exponentiate_capped<E, true>(probs, factors, s, rows.lse, cap, ~0u);
    } else {
      Base::template exponentiate_capped<E, false>(probs, factors, s, rows.lse, cap, Base::seen_pairs(masked, step));
    }
  }
  // Computes P of a tile with other options, and writes the factors of dS to the buffer of dS.
  __device__ __forceinline__ void exponentiate_options(OperandA& probs, Scores& s, const RowState& rows, bool masked,
                                                       int step) const {
    unsigned seen = ~0u;
    if constexpr (Options::kHasMask) seen = kEarlyMask ? rows.shown : Base::tensor_mask();
    if constexpr (Options::kMasksP) seen &= Base::seen_pairs(masked, step);
    Options::apply_softcap(s[0], a);
    if (!Options::kMasksP && masked) hide(s, a, task(), uniform(task().visited.tile(step)));
    Base::correct_alibi(s);
    if constexpr (C.options == kAlibi) return Base::exponentiate_and_narrow(probs, s, rows.lse, p.scale_log2);
    if constexpr (kFactorsInBuffer) wait_ds_free(Base::buffer);
    Base::template exponentiate_pairs<E, Options::kMasksP>(probs, s, Base::lane_bias(), seen, rows.kept,
                                                           typename Base::Exponents{p, rows, Base::step_info()},
                                                           [&](int n, const unsigned(&factors)[4]) {
                                                             if constexpr (Options::kHasFactor)
                                                               Base::store_factors(n, factors);
                                                           });
    if constexpr (Options::kHasFactor) __syncwarp();
  }

  // For a tile whose products are issued one at a time, or not at all.
  __device__ __forceinline__ void skip_turn() const {
    Turn::wait(group), Turn::pass(group);
    KeyTurn::wait(group), KeyTurn::pass(group);
  }

  // Processes the query tile of the current stage, whose S is complete. On return S of the next tile is complete; the
  // result is that tile's mode.
  __device__ __forceinline__ TileMode visit(Scores& s, RowState& rows, bool masked, int step, int next_step) {
    const int stage = queries.stage;
    OperandA probs, ds,
        factors;  // factors of dS: with kPolynomialSoftcap; other options keep them in the buffer of dS
    Scores dp;
    RowValues delta;
    Base::wait_for_douts();
    if constexpr (Options::kPolynomialSoftcap) {
      exponentiate_capped(probs, factors, s, rows, masked, step);
    } else if constexpr (C.options != 0) {
      exponentiate_options(probs, s, rows, masked, step);
    } else {
      if (masked) hide(s, a, task(), uniform(Base::tile_of(step)));
      Base::exponentiate_and_narrow(probs, s, rows.lse, p.scale_log2);
    }
    fence_operands(probs);
    Turn::wait(group);
    issue_scores(dp, pipeline.v(), pipeline.dout(stage));
    if (kPassesAfterDp) Turn::pass(group);
    Base::template issue_accumulate<DvProduct>(dv, probs, pipeline.dout(stage));
    if (!kPassesAfterDp) Turn::pass(group);
    if (kEarlyDelta) Base::load_delta(delta, stage);
    wgmma_wait<1>();
    fence_operands(dp[0]);
    if (!kEarlyDelta && !Options::kHasFactor) Base::load_delta(delta, stage);
    if constexpr (Options::kHasFactor) {
      Base::template differentiate_pairs<E>(ds, dp, Base::lane_delta(stage), p.factors.keep, Options::kHasDropout,
                                            [&](int n, unsigned(&four)[4]) {
                                              if constexpr (kFactorsInBuffer) Base::load_factors(n, four);
                                              else
#pragma unroll
                                                for (int x = 0; x < 4; ++x) four[x] = factors[n][x];
                                            });
    } else {
      Base::differentiate_and_narrow(ds, dp, probs, delta);
    }
    // A dropped pair has a P of 0, but not a dS of 0.
    if (!Options::kHasDropout && (masked || Options::kMayMaskAnyPair)) Base::zero_where_p_is_zero(ds, probs);
    fence_operands(ds);
    KeyTurn::wait(group);
    Base::template issue_accumulate<DkProduct>(dk, ds, pipeline.q(stage));
    const auto hand_over_ds = [&, buffer = Base::buffer] {
      if (!kFactorsInBuffer) wait_ds_free(buffer);
      write_ds(ds, buffer);
    };
    if (!kScoresFirst) hand_over_ds();
    wgmma_wait<1>();
    fence_operands(probs), fence_operands(dv);
    // After the last tile these scores are not used: issuing them avoids a branch around wgmma.
    advance();
    issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    KeyTurn::pass(group);
    if (kScoresFirst) hand_over_ds();
    wgmma_wait<1>();
    fence_operands(ds), fence_operands(dk);
    release_queries(stage);
    load_rows(rows);
    const TileMode next = mode(next_step);
    wgmma_wait<0>();
    fence_operands(s[0]);
    return next;
  }
  // Processes a masked tile with a non-finite element, or a tile with a large LSE, one wgmma at a time.
  __device__ __forceinline__ void visit_guarded(Scores& s, int tile) {
    skip_turn();
    const int stage = queries.stage;
    const float* stats = pipeline.stats(stage);
    const bool use_select = uniform(stats[kFlag] != 0);
    OperandA probs, factors;
    if constexpr (C.options == 0) {
      hide(s, a, task(), tile);
      exponentiate_any_size<kPortable, TileMode::guarded>(s, stats, lane_coord().column, static_cast<float>(a.scale),
                                                          p.scale_log2);
      narrow<C.element>(probs, s[0]);
    } else {
      exponentiate_guarded(probs, factors, s, tile);
    }
    fence_operands(probs);
    if (use_select) Base::template zero_not_finite<C.warpgroups * kWarpgroupThreads>(pipeline.q(stage));
    Base::wait_for_douts();
    if constexpr (Options::kHasFactor) {
      // The registers of dP are free until dV is accumulated: the factors take them.
      accumulate_dv_guarded(probs, stage, use_select);
      compute_dp(s, stage);
    } else {
      compute_dp(s, stage);
      accumulate_dv_guarded(probs, stage, use_select);
    }
    RowValues delta;
    if (!Options::kHasFactor) Base::load_delta(delta, stage);
    if constexpr (Options::kHasFactor) {
      Base::template differentiate_pairs<E>(probs, s, Base::lane_delta(stage), p.factors.keep, true,
                                            [&](int n, unsigned(&four)[4]) {
#pragma unroll
                                              for (int x = 0; x < 4; ++x) four[x] = factors[n][x];
                                            });
    } else {
      Base::template differentiate<TileMode::guarded>(s, probs, delta);
      narrow<C.element>(probs, s[0]);
    }
    write_ds(probs, Base::buffer);
    Base::template issue_accumulate<DkProduct>(dk, probs, pipeline.q(stage));
    wgmma_wait<0>();
    fence_operands(dk);
    release_queries(stage);
    advance();
    compute_scores(s);
  }
  __device__ __forceinline__ void exponentiate_guarded(OperandA& probs, OperandA& factors, const Scores& s,
                                                       int tile) const {
    Base::template exponentiate_pairs<E, true>(
        probs, s, Base::lane_bias(), Base::visible_pairs(a, task(), tile) & Base::tensor_mask(), Base::kept_pairs(),
        Base::guarded_exponents(), [&](int n, const unsigned(&four)[4]) {
#pragma unroll
          for (int x = 0; x < 4; ++x) factors[n][x] = four[x];
        });
  }
  __device__ __forceinline__ void compute_dp(Scores& dp, int stage) const {
    issue_scores(dp, pipeline.v(), pipeline.dout(stage));
    wgmma_wait<0>();
    fence_operands(dp[0]);
  }
  __device__ __forceinline__ void accumulate_dv_guarded(OperandA& probs, int stage, bool use_select) {
    wait_ds_free(Base::buffer);
    if (use_select) {
      // P goes to the dS buffer, which is written later.
      Base::store(probs, Base::ds_buffer());
      __syncwarp();
      const auto p_tile = pipeline.ds_tile(Base::ds_buffer());
      Base::accumulate_selected(dv, pipeline.dout(stage), [=](int query, int r) {
        const int key = lane_coord().row + 8 * r;
        const unsigned address = p_tile.piece(query, key) + key % 8 * 2;
        return widen<E>(*static_cast<const unsigned short*>(__cvta_shared_to_generic(address)));
      });
      __syncwarp();
    } else {
      Base::template issue_accumulate<DvProduct>(dv, probs, pipeline.dout(stage));
      wgmma_wait<0>();
      fence_operands(dv);
    }
  }

  // Processes a query tile that sees none of this warpgroup's keys: its dS is 0.
  __device__ __forceinline__ void visit_hidden(Scores& s) {
    skip_turn();
    const int stage = queries.stage;
    Base::wait_for_douts();
    wait_ds_free(Base::buffer);
    write_ds(OperandA{}, Base::buffer);
    release_queries(stage);
    advance();
    compute_scores(s);
  }

  // Processes tiles until one needs another code path.
  __device__ __forceinline__ TileMode visit_all(Scores& s, TileMode next, int& step, int steps) {
    RowState rows;
    load_rows(rows);
#pragma unroll 1
    do {
      const int this_step = step;
      if (++step == steps) step = 0;
      next = visit(s, rows, next == TileMode::masked, this_step, step);
    } while (iteration < count && next <= TileMode::masked);
    return next;
  }

  __device__ __forceinline__ void mainloop() {
    const int steps = uniform(task().visited.count());
    Base::wait_for_queries();
    Scores s;
    compute_scores(s);
    mbarrier_wait(pipeline.v_full(), keys.phase());
    int step = 0;
    TileMode next = mode(0);
#pragma unroll 1
    while (iteration < count) {
      if (next <= TileMode::masked) {
        next = visit_all(s, next, step, steps);
      } else {
        if (next == TileMode::hidden) visit_hidden(s);
        else visit_guarded(s, uniform(Base::tile_of(step)));
        if (++step == steps) step = 0;
        next = mode(step);
      }
      converge();
    }
  }

  __device__ __forceinline__ void clear_accumulators() { Base::clear(dk), Base::clear(dv); }
  __device__ __forceinline__ void store_accumulators() const {
    Base::store_rows(p.backward.dk, p.backward.dk_accum, dk, static_cast<float>(a.scale), a.dim_qk);
    Base::store_rows(p.backward.dv, p.backward.dv_accum, dv, Base::dv_factor(), a.dim_v);
  }
  __device__ __forceinline__ void run() {
    if (group == C.warpgroups - 1) Turn::pass(group), KeyTurn::pass(group);  // the first warpgroup starts
    Base::run_persistent(*this);
  }
};

}  // namespace cuflash
