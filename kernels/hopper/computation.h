// A warpgroup that computes 64 queries of each tile that its CTA takes. Products are asynchronous: while the values of one
// tile are multiplied, the weights of the next are computed from scores that were multiplied before them.
//
//   wait K(n+1) | my turn | issue S = Q K(n+1) | wait V(n) | issue O += P V(n) | next one's turn | S is there | weights of
//   S | O is there | rescale O where references moved | P = weights
#pragma once

#include "attn/softmax.h"
#include "attn/tile_scores.h"
#include "hopper/pipeline.h"
#include "hopper/store.h"
#include "hopper/work.h"
#include "ptx/warpgroup.h"

namespace cuflash {

template <HopperForwardConfig C>
struct Computation {
  static constexpr Element E = C.element;
  static constexpr int kScoreTiles = C.tile_k / 8, kOutputTiles = C.dim_v / 8, kSteps = C.tile_k / 16;
  static_assert(size_of(E) == 2 && C.tile_k % 16 == 0 && C.dim_qk % 16 == 0 && C.dim_v % 32 == 0);
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;
  using OutputProduct = WarpgroupProduct<E, C.dim_v, true>;
  using Options = ScoreOptions<E, C.options>;
  using Scores = Accumulator<float>[1][kScoreTiles];
  using Output = Accumulator<float>[1][kOutputTiles];
  using Weights = unsigned[kSteps][4];

  const HopperForwardParams& p;
  const AttentionParams& a;
  Pipeline<C> pipeline;
  int group;            // which of the warpgroups
  Ring<C.stages> keys;  // the values of the tile before these are used with them

  __device__ Computation(const HopperForwardParams& p, const Pipeline<C>& pipeline, int group)
      : p(p), a(p.forward.attention), pipeline(pipeline), group(group) {}

  // Counted from the warpgroup's first row; found anew, so that it does not stay in registers.
  __device__ static LanePlace lane_place() {
    const int thread = new_thread_id();
    return {thread / 32 % 4 * 16 + thread % 32 / 4, thread % 4 * 2};
  }

  __device__ void wait_turn() const {
    if constexpr ((C.order & kTurns) != 0) numbered_barrier_wait(1 + group, 2 * kWarpgroupThreads);
  }
  __device__ void pass_turn() const {
    if constexpr ((C.order & kTurns) != 0)
      numbered_barrier_arrive(1 + (group + 1 == C.warpgroups ? 0 : group + 1), 2 * kWarpgroupThreads);
  }
  __device__ void release(unsigned barrier) const {
    if (lane_id() == 0) barrier_arrive(barrier);
  }
  __device__ void wait_keys() const { barrier_wait(pipeline.k_full(keys.stage), keys.phase); }
  __device__ void release_keys() const { release(pipeline.k_empty(keys.stage)); }
  __device__ void wait_values(Ring<C.stages> at) const { barrier_wait(pipeline.v_full(at.stage), at.phase); }
  __device__ void release_values(Ring<C.stages> at) const { release(pipeline.v_empty(at.stage)); }

  // Tiles that others of the CTA need.
  __device__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      wait_turn(), pass_turn();
      wait_keys(), release_keys();
      wait_values(keys), release_values(keys);
      keys.advance();
    }
  }

  __device__ __forceinline__ void issue_scores(Scores& s) const {
    auto q = pipeline.q(group);
    if constexpr (C.dim_qk > 128) asm volatile("" : "+r"(q.address));  // or all of its descriptors stay in registers
    const auto k = pipeline.k(keys.stage);
    products_fence();
    ScoreProduct::start(s[0], q.along_rows(0), k.along_rows(0));
#pragma unroll
    for (int step = 1; step < C.dim_qk / 16; ++step) ScoreProduct::add(s[0], q.along_rows(step), k.along_rows(step));
    products_commit();
  }
  __device__ __forceinline__ void issue_output(Output& o, Weights& w, int stage) const {
    const auto v = pipeline.v(stage);
    pin_all(w);
    products_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) OutputProduct::add(o[0], w[step], v.across_rows(step));
    products_commit();
  }
  template <int kTiles>
  static __device__ __forceinline__ void pin_all(Accumulator<float> (&x)[1][kTiles]) {
#pragma unroll
    for (int n = 0; n < 4 * kTiles; ++n) pin(x[0][n / 4].x[n % 4]);
  }
  static __device__ __forceinline__ void pin_all(Weights& w) {
#pragma unroll
    for (int n = 0; n < 4 * kSteps; ++n) pin(w[n / 4][n % 4]);
  }

  static __device__ __forceinline__ void narrow_weights(Weights& w, const Scores& s) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto a = Operands<E>::from_accumulators(&s[0][2 * step]);
#pragma unroll
      for (int n = 0; n < 4; ++n) w[step][n] = a.r[n];
    }
  }

  // Scores of a tile of keys become weights; whether the output has to be rescaled, and by what.
  template <bool kEdge>
  __device__ __forceinline__ bool weigh(const Note& note, const Options& options, Softmax<float, 1>& softmax, Scores& s,
                                        int tile, float (&shrink)[2]) const {
    const int first = tile * C.tile_k;
    const LanePlace lane = lane_place();
    change_scores<kEdge, kWarpgroupRows>(s, a, note.sequence(), options, lane, note.q_first, first);
    const bool moved = softmax.move(s, [&](int r, float x) { shrink[r] = x; });
    softmax.weigh(s);
    drop_weights(s, options, a.dropout_threshold, lane, note.q_first, first);
    return moved;
  }

  // The compiler moves a plain wait in front of the exponentials, which then run after the products instead of under them.
  // It does not move one out of a loop, and no group of heads is empty.
  __device__ __forceinline__ void wait_behind_weights() const {
    do products_wait<0>();
    while ((C.order & kHoldWait) != 0 && a.group == 0);
  }

  // From tile `tile`, whose weights are at hand, down to tile `last`, whose weights are then. The queries are free for
  // others as soon as the warpgroup's last scores are there.
  template <bool kEdge>
  __device__ __forceinline__ void advance(int& tile, int last, const Note& note, const Options& options,
                                          Softmax<float, 1>& softmax, Weights& w, Output& o) {
    const bool ends = last == note.own_begin;
#pragma unroll 1
    for (; tile > last; --tile) {
      Scores s;
      wait_keys();
      wait_turn();
      issue_scores(s);
      wait_values(keys.before());
      issue_output(o, w, keys.before().stage);
      pass_turn();
      products_wait<1>();
      pin_all(s);
      release_keys();
      if (ends && tile - 1 == last) release(pipeline.q_empty(group));
      float shrink[2];
      const bool moved = weigh<kEdge>(note, options, softmax, s, tile - 1, shrink);
      wait_behind_weights();
      pin_all(o), pin_all(w);
      release_values(keys.before());
      keys.advance();
      if (moved) {
#pragma unroll
        for (int r = 0; r < 2; ++r) softmax.rescale(o, r, shrink[r]);
      }
      narrow_weights(w, s);
    }
  }

  // Scores of the first tile of keys, with nothing to do meanwhile.
  __device__ __forceinline__ void begin(Scores& s) {
    wait_keys();
    wait_turn();
    issue_scores(s);
    products_wait<0>();
    pin_all(s);
    pass_turn();
    release_keys();
    keys.advance();
  }

  // The tiles of the warpgroup, at least one: masked ones at the end, full ones, masked ones at the beginning. The scores
  // of the first are at hand, the last product is under way at the end.
  __device__ __forceinline__ void sum(const Note& note, const Options& options, Softmax<float, 1>& softmax, Scores& s,
                                      Output& o, Weights& w) {
    int tile = note.own_end - 1;
    if (tile == note.own_begin) release(pipeline.q_empty(group));
    float shrink[2];
    weigh<true>(note, options, softmax, s, tile, shrink);
    narrow_weights(w, s);
    // Twice through the same code: there are no full tiles the second time.
#pragma unroll 1
    for (int last = note.full_end;; last = note.own_begin) {
      advance<true>(tile, last, note, options, softmax, w, o);
      if (last == note.own_begin) break;
      advance<false>(tile, note.full_begin, note, options, softmax, w, o);
    }
    wait_values(keys.before());
    issue_output(o, w, keys.before().stage);
  }

  __device__ __forceinline__ void store(const Note& note, const Options& options, Softmax<float, 1>& softmax,
                                        const Output& o) const {
    const ForwardParams& f = p.forward;
    softmax.gather();
    const float sink = a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, note.h))
                                   : minus_infinity<float>();
    const float keep = options.drops() ? static_cast<float>(a.keep_scale) : 1.0f;
    const LanePlace lane = lane_place();
    RowStore<E, kOutputTiles> rows{o[0], {}, {}, lane.column / 2, a.dim_v};
    const int first = note.q_first + lane.row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + 8 * r;
      const RowEnd<float> row = end_row(softmax.reference[r], softmax.sum[r], options.unit(), sink, keep);
      const bool exists = i < note.len_q;
      rows.factor[r] = exists ? row.factor : 0;
      rows.written[r] = i < note.rows_end;
      if (f.lse.data && lane.column == 0 && rows.written[r])
        static_cast<float*>(f.lse.data)[offset_of(f.lse, note.b, note.h, int64{note.q_begin} + i)] =
            exists ? row.lse : minus_infinity<float>();
    }
    rows.to(f.o, offset_of(f.o, note.b, note.h, int64{note.q_begin} + first));
  }

  // Whether the first scores of the next tile are the very next thing to compute: nothing is skipped before them.
  __device__ __forceinline__ bool goes_on(const Note& note, unsigned round) const {
    if ((C.order & kAhead) == 0 || note.own_begin != note.begin || round + 1 == p.order.rounds) return false;
    barrier_wait(pipeline.q_full(group), (round + 1) % 2);
    const Note& next = pipeline.note(group, round + 1);
    return next.rows_end != 0 && next.own_begin != next.own_end && next.own_end == next.end;
  }

  // The part of a tile that this warpgroup has. begun: the first scores are at hand; returns whether those of the next
  // tile are.
  __device__ __forceinline__ bool attend(const Note& note, unsigned round, bool begun, Scores& s) {
    const Options options(a, note.sequence(), note.b, note.h);
    Softmax<float, 1> softmax(options.factor());
    Output o = {};
    if (note.own_begin == note.own_end) {
      release(pipeline.q_empty(group));
      skip(note.end - note.begin);
      store(note, options, softmax, o);
      forget(s);
      return false;
    }
    if (!begun) {
      skip(note.end - note.own_end);
      begin(s);
    }
    Weights w;
    sum(note, options, softmax, s, o, w);
    if (goes_on(note, round)) {
      wait_keys();
      wait_turn();
      issue_scores(s);
      pass_turn();
      products_wait<1>();
      pin_all(o), pin_all(w);
      release_values(keys.before());
      store(note, options, softmax, o);
      products_wait<0>();
      pin_all(s);
      release_keys();
      keys.advance();
      return true;
    }
    products_wait<0>();
    pin_all(o), pin_all(w);
    release_values(keys.before());
    skip(note.own_begin - note.begin);
    store(note, options, softmax, o);
    forget(s);
    return false;
  }
  // What they were is not worth keeping.
  static __device__ __forceinline__ void forget(Scores& s) {
    if constexpr ((C.order & kAhead) != 0) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) s[0][n] = {};
    }
  }

  __device__ __forceinline__ void run() {
    if (group == C.warpgroups - 1) pass_turn();  // the first turn
    Scores s;
    bool begun = false;
#pragma unroll 1
    for (Round round; round.any(p.order); round.next()) {
      barrier_wait(pipeline.q_full(group), round.number % 2);
      const Note& note = pipeline.note(group, round.number);
      if (note.rows_end == 0) release(pipeline.q_empty(group));
      else begun = attend(note, round.number, begun, s);
    }
  }
};

}  // namespace cuflash
