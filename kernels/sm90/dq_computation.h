// A warpgroup that computes dQ of 64 queries of each tile that its CTA takes. Products are asynchronous: while the keys of
// one tile are multiplied with dS, the weights of the next are computed from scores that were multiplied before them.
//
//   wait K(n+1) | issue S = Q K(n+1) | issue dQ += dS K(n) | S is there | weights of S | wait V(n+1) |
//   issue dP = dO V(n+1) | dQ, dP are there | dS
#pragma once

#include "sm90/dq_pipeline.h"
#include "sm90/dq_scores.h"
#include "sm90/products.h"
#include "sm90/store.h"
#include "sm90/work.h"

namespace cuflash {

template <HopperDqConfig C>
struct DqComputation : DqScores<C> {
  using Base = DqScores<C>;
  using Base::E, Base::kShared, Base::kKeyTiles, Base::kSteps, Base::lane_place;
  using typename Base::Scores, typename Base::Gradients, typename Base::Rows;
  static_assert(size_of(E) == 2 && C.tile_k % 16 == 0 && C.dim_qk % 32 == 0 && C.dim_v % 32 == 0);
  static_assert(C.key_places >= 2 && C.value_places >= 1);
  static constexpr int kSumTiles = C.dim_qk / 8;
  using Pipeline = DqPipeline<C>;
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;
  using SumProduct = WarpgroupProduct<E, C.dim_qk, true>;
  using Sums = Accumulator<float>[kSumTiles];

  const HopperBackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  int group;  // which of the warpgroups
  Round round;
  Ring<C.key_places> keys;  // of the tile that is multiplied with dS next
  Ring<C.value_places> values;

  __device__ DqComputation(const HopperBackwardParams& p, const Pipeline& pipeline, int group)
      : p(p), a(p.backward.attention), pipeline(pipeline), group(group) {}

  __device__ const float* stats() const { return pipeline.stats(group, round.number); }

  __device__ void release(unsigned barrier) const {
    if (lane_id() == 0) barrier_arrive(barrier);
  }
  // A tile of keys that the CTA visits is one turn of every warpgroup.
  __device__ void wait_turn() const {
    if constexpr (C.turns != 0) numbered_barrier_wait(1 + group, 2 * kWarpgroupThreads);
  }
  __device__ void pass_turn() const {
    if constexpr (C.turns != 0)
      numbered_barrier_arrive(1 + (group + 1 == C.warpgroups ? 0 : group + 1), 2 * kWarpgroupThreads);
  }
  __device__ void wait_queries() const {
    barrier_wait(pipeline.q_full(group, round.number), pipeline.query_phase(round.number));
  }
  // All lanes have read the statistics.
  __device__ void release_queries() const {
    __syncwarp();
    release(pipeline.q_empty(group, round.number));
  }
  __device__ void wait_keys(const Ring<C.key_places>& at) const { barrier_wait(pipeline.k_full(at.stage), at.phase); }
  __device__ void release_keys() {
    release(pipeline.k_empty(keys.stage));
    keys.advance();
  }
  __device__ void wait_values() const { barrier_wait(pipeline.v_full(values.stage), values.phase); }
  __device__ void release_values() {
    release(pipeline.v_empty(values.stage));
    values.advance();
  }
  // Tiles that others of the CTA need.
  __device__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      wait_turn(), pass_turn();
      wait_keys(keys), release_keys();
      wait_values(), release_values();
    }
  }

  // s = the warpgroup's rows, times those of a tile of keys or values.
  template <int kColumns>
  static __device__ __forceinline__ void issue_scores(Scores& s, SwizzledTile<kWarpgroupRows, kColumns> rows,
                                                      SwizzledTile<C.tile_k, kColumns> of_keys) {
    asm volatile("" : "+r"(rows.address));  // or all of its descriptors stay in registers
    products_fence();
    ScoreProduct::start(s, rows.along_rows(0), of_keys.along_rows(0));
#pragma unroll
    for (int step = 1; step < kColumns / 16; ++step)
      ScoreProduct::add(s, rows.along_rows(step), of_keys.along_rows(step));
    products_commit();
  }
  __device__ __forceinline__ void issue_scores(Scores& s, const Ring<C.key_places>& at) const {
    issue_scores(s, pipeline.q(group, round.number), pipeline.k(at.stage));
  }
  __device__ __forceinline__ void issue_value_scores(Scores& dp) const {
    issue_scores(dp, pipeline.dout(group, round.number), pipeline.v(values.stage));
  }
  __device__ __forceinline__ void issue_sums(Sums& dq, Gradients& ds) const {
    const auto k = pipeline.k(keys.stage);
    pin_all(ds);
    products_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) SumProduct::add(dq, ds[step], k.across_rows(step));
    products_commit();
  }

  // dQ += dS K without what has a dS of 0: its key may not be finite. The four lanes of a row have its dS, which move on by
  // one tile of keys after the other, so that those in use have a register of a known number.
  __device__ __forceinline__ void select_sums(Sums& dq, Gradients& ds) const {
    const auto k = pipeline.k(keys.stage);
#pragma unroll 1
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll 1
      for (int key = 0; key < 8; ++key) {
        float d[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const unsigned two = __shfl_sync(0xffffffffu, ds[0][r], lane_id() / 4 * 4 + key / 2);
          d[r] = widen<E>(static_cast<unsigned short>(key % 2 == 0 ? two : two >> 16));
        }
        select_key(dq, d, k, 8 * tile + key);
        converge();
      }
#pragma unroll
      for (int n = 0; n + 1 < kKeyTiles; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) ds[n / 2][n % 2 * 2 + r] = ds[(n + 1) / 2][(n + 1) % 2 * 2 + r];
      converge();
    }
  }
  static __device__ __forceinline__ void select_key(Sums& dq, const float (&d)[2], typename Pipeline::KTile k,
                                                    int key) {
    const int column = lane_place().column;
#pragma unroll
    for (int n = 0; n < kSumTiles; ++n) {
      const unsigned two = *static_cast<const unsigned*>(__cvta_shared_to_generic(k.piece(key, 8 * n) + column * 2));
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float value = widen<E>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
        dq[n].x[x] += d[x / 2] * (d[x / 2] != 0 ? value : 0.0f);
      }
    }
  }

  static __device__ bool is_full(const Note& note, int tile) {
    return uniform(note.full_begin <= tile && tile < note.full_end);
  }
  // Whether a tile of which not everybody sees everything holds something that products would carry to others.
  __device__ __forceinline__ bool finds_not_finite(Scores& s, const Note& note) const {
    return uniform(
        numbered_barrier_any(1 + C.warpgroups + group, kWarpgroupThreads, Base::has_not_finite_score(s, note)));
  }

  // One tile without overlap, where LSE are large or something is not finite, and not for everybody.
  __device__ __forceinline__ void visit_guarded(Scores& s, Sums& dq, const Note& note, int tile) {
    Gradients ds;
    Base::weigh_any_size(s, a, note, tile, stats(), p.exponent);
    narrow<C.element>(ds, s);
    pin_all(ds);
    wait_values();
    issue_value_scores(s);
    products_wait<0>();
    pin_all(s);
    release_values();
    Base::differentiate_narrow(ds, s, stats());
    select_sums(dq, ds);
    pin_all(dq);
    __syncwarp();  // all lanes have read the keys
    release_keys();
  }

  // dS of weights and of the tile's values, with nothing to do meanwhile.
  template <bool kEdge>
  __device__ __forceinline__ void differentiate_now(Gradients& ds, Scores& s, const Note& note, const Rows& rows,
                                                    int tile) {
    Scores dp;
    Base::template weigh<kEdge>(s, a, note, tile, rows, p.exponent);
    pin_all(s);
    wait_values();
    issue_value_scores(dp);
    products_wait<0>();
    pin_all(dp);
    release_values();
    Base::template differentiate<kEdge>(ds, s, dp, rows);
  }
  // The first tile of a stretch: its dS are at hand at the end, or false, and it is done. again: its turn has been.
  __device__ __forceinline__ bool begin(Gradients& ds, Sums& dq, const Note& note, const Rows& rows, int tile,
                                        bool again) {
    Scores s;
    const bool full = is_full(note, tile);
    wait_keys(keys);
    if (!again) wait_turn();
    issue_scores(s, keys);
    products_wait<0>();
    pin_all(s);
    if (!again) pass_turn();
    if (uniform(has_large_rows<kShared>(stats())) || (!full && finds_not_finite(s, note))) {
      visit_guarded(s, dq, note, tile);
      return false;
    }
    if (full) differentiate_now<false>(ds, s, note, rows, tile);
    else differentiate_now<true>(ds, s, note, rows, tile);
    return true;
  }

  // From tile `tile`, whose dS are at hand, down to tile `last`, whose dS are then. False: it ends before that, since `tile`
  // has to be visited without overlap; all before it are done.
  template <bool kEdge>
  __device__ __forceinline__ bool advance(int& tile, int last, const Note& note, const Rows& rows, Gradients& ds,
                                          Sums& dq) {
#pragma unroll 1
    while (tile > last) {
      Scores s, dp;
      Ring<C.key_places> next = keys;
      next.advance();
      wait_keys(next);
      wait_turn();
      issue_scores(s, next);
      issue_sums(dq, ds);
      pass_turn();
      products_wait<1>();
      pin_all(s);
      --tile;
      if (kEdge && finds_not_finite(s, note)) {
        products_wait<0>();
        pin_all(dq), pin_all(ds);
        release_keys();
        return false;
      }
      Base::template weigh<kEdge>(s, a, note, tile, rows, p.exponent);
      pin_all(s);
      wait_values();
      issue_value_scores(dp);
      products_wait<1>();
      pin_all(dq), pin_all(ds);
      release_keys();
      products_wait<0>();
      pin_all(dp);
      release_values();
      Base::template differentiate<kEdge>(ds, s, dp, rows);
    }
    return true;
  }
  // Masked tiles at the end, full ones, masked ones at the beginning.
  __device__ __forceinline__ bool advance_all(int& tile, const Note& note, const Rows& rows, Gradients& ds, Sums& dq) {
    // Twice through the same code: there are no full tiles the second time.
#pragma unroll 1
    for (int last = uniform(note.full_end);; last = uniform(note.own_begin)) {
      if (!advance<true>(tile, last, note, rows, ds, dq)) return false;
      if (last == uniform(note.own_begin)) return true;
      if (!advance<false>(tile, uniform(note.full_begin), note, rows, ds, dq)) return false;
    }
  }
  __device__ __forceinline__ void sum(Sums& dq, const Note& note) {
    const Rows rows(stats());
    int tile = uniform(note.own_end) - 1;
    bool again = false;
#pragma unroll 1
    while (tile >= uniform(note.own_begin)) {
      Gradients ds;
      if (!begin(ds, dq, note, rows, tile, again)) {
        --tile, again = false;
      } else if (again = !advance_all(tile, note, rows, ds, dq); !again) {
        issue_sums(dq, ds);
        products_wait<0>();
        pin_all(dq), pin_all(ds);
        release_keys();
        --tile;
      }
      converge();
    }
  }

  __device__ __forceinline__ void store(const Note& note, const Sums& dq) const {
    const LanePlace lane = lane_place();
    const int first = note.q_first + lane.row;
    const auto scale = static_cast<float>(a.scale);
    const RowStore<E, kSumTiles> rows{dq,
                                      {first < note.len_q ? scale : 0.0f, first + 8 < note.len_q ? scale : 0.0f},
                                      {first < note.rows_end, first + 8 < note.rows_end},
                                      lane.column / 2,
                                      a.dim_qk};
    rows.to(p.backward.dq, offset_of(p.backward.dq, note.b, note.h, int64{note.q_begin} + first));
  }
  // Rows without keys.
  __device__ __forceinline__ void store_nothing(const Note& note) const {
    const LanePlace lane = lane_place();
    for (int i = note.q_first + lane.row; i < min(note.q_first + lane.row + 16, note.rows_end); i += 8)
      clear_row<E>(p.backward.dq, offset_of(p.backward.dq, note.b, note.h, int64{note.q_begin} + i), lane.column / 2,
                   a.dim_qk);
  }

  __device__ __forceinline__ void run() {
    if (group == C.warpgroups - 1) pass_turn();  // the first turn
#pragma unroll 1
    for (; round.any(p.order); round.next()) {
      wait_queries();
      converge();
      const Note& note = pipeline.note(group, round.number);
      if (uniform(note.rows_end == 0)) {
        release_queries();
      } else if (uniform(note.own_begin == note.own_end)) {
        release_queries();
        skip(uniform(note.end - note.begin));
        store_nothing(note);
      } else {
        Sums dq = {};
        pin_all(dq);
        skip(uniform(note.end - note.own_end));
        sum(dq, note);
        release_queries();
        skip(uniform(note.own_begin - note.begin));
        store(note, dq);
      }
      converge();
    }
  }
};

}  // namespace cuflash
