// A warpgroup that has 64 keys: S^T, P, dP^T and dS^T of one tile of queries after the other, and the sums of dK and dV.
//
//   P from S(n) | issue dP | issue dV += P^T dO | dP is there | dS | dV is there | dS to shared memory |
//   issue dK += dS^T Q | issue S(n+1) | dK is there: the queries are free | S(n+1) is there
//
// S, dP and dS take turns in the same registers, and so do P and dS once they are narrowed: P is narrowed before dP is
// started, widened again for dS, and its place is free when dV is there.
#pragma once

#include "hopper/backward_pipeline.h"
#include "hopper/key_scores.h"
#include "hopper/ring.h"
#include "hopper/store.h"
#include "ptx/warpgroup.h"
#include "tile/finite.h"

namespace cuflash {

template <HopperBackwardConfig C>
struct KeyGroup : KeyScores<C> {
  using Base = KeyScores<C>;
  using Base::E, Base::kShared, Base::kSteps, Base::lane_place, Base::narrow_weights, Base::hide, Base::differentiate;
  using typename Base::Scores, typename Base::Weights;
  static constexpr int kFlag = flag_at(kShared);
  static constexpr int kKeyThreads = C.warpgroups * kWarpgroupThreads;
  static_assert(size_of(E) == 2 && C.dim_qk % 32 == 0 && C.dim_v % 32 == 0);
  using Pipeline = BackwardPipeline<C>;
  using ScoreProduct = WarpgroupProduct<E, C.tile_q, false>;
  using DkProduct = WarpgroupProduct<E, C.dim_qk, true>;
  using DvProduct = WarpgroupProduct<E, C.dim_v, true>;

  const HopperBackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  int group;
  Ring<C.stages> queries;
  Ring<kPlaces> places;
  unsigned keys_phase = 0;
  int number, count;  // of this step, of all steps with these keys
  Accumulator<float> dk[C.dim_qk / 8], dv[C.dim_v / 8];

  __device__ KeyGroup(const HopperBackwardParams& p, const Pipeline& pipeline, int group)
      : p(p), a(p.backward.attention), pipeline(pipeline), group(group) {}

  __device__ __forceinline__ const Place& place() const { return pipeline.place(places.stage); }

  template <int kTiles>
  static __device__ __forceinline__ void pin_all(Accumulator<float> (&x)[kTiles]) {
#pragma unroll
    for (int n = 0; n < 4 * kTiles; ++n) pin(x[n / 4].x[n % 4]);
  }
  static __device__ __forceinline__ void pin_all(Weights& w) {
#pragma unroll
    for (int n = 0; n < 4 * kSteps; ++n) pin(w[n / 4][n % 4]);
  }

  // s = the warpgroup's rows of `keys`, times those of `rows`. kInPlace: s is read, as far as the compiler can tell; it
  // would start these products above whatever reads s otherwise, in registers of their own. No group of heads is empty.
  template <bool kInPlace = false, int kColumns>
  __device__ __forceinline__ void issue_scores(Scores& s, SwizzledTile<Pipeline::kTileK, kColumns> keys,
                                               SwizzledTile<C.tile_q, kColumns> rows) const {
    keys.address += group * kWarpgroupRows * kPanelRowBytes;
    asm volatile("" : "+r"(keys.address));  // or all of its descriptors stay in registers
    products_fence();
    if constexpr (kInPlace) ScoreProduct::add_if(a.group == 0, s[0], keys.along_rows(0), rows.along_rows(0));
    else ScoreProduct::start(s[0], keys.along_rows(0), rows.along_rows(0));
#pragma unroll
    for (int step = 1; step < (kColumns + 15) / 16; ++step)
      ScoreProduct::add(s[0], keys.along_rows(step), rows.along_rows(step));
    products_commit();
  }
  // sums += w rows.
  template <class Product, int kTiles, int kColumns>
  __device__ __forceinline__ void issue_sums(Accumulator<float> (&sums)[kTiles], Weights& w,
                                             SwizzledTile<C.tile_q, kColumns> rows) const {
    pin_all(w);
    products_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) Product::add(sums, w[step], rows.across_rows(step));
    products_commit();
  }

  // Into the warp's columns of a tile of dS, which has queries in rows.
  __device__ __forceinline__ void store(const Weights& w, int tile) const {
    const int thread = new_thread_id(), lane = thread % 32;
    const auto to = pipeline.gradient(tile);
    const unsigned address = to.piece(lane / 16 * 8 + lane % 8, thread / 32 * 16 + lane / 8 % 2 * 8);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) store_matrices_transposed(address + step * 16 * kPanelRowBytes, w[step]);
  }

  // Weights of 0 hide no NaN from products. Elements of Q that are not finite are left out of dS^T Q: whoever sees them
  // has a dS that is NaN. All that have keys have multiplied these queries for their scores.
  __device__ __forceinline__ void clear_not_finite(typename Pipeline::QTile q) const {
    numbered_barrier_wait(Pipeline::kAllKeys, kKeyThreads);
    auto* pieces = static_cast<uint4*>(__cvta_shared_to_generic(q.address));
#pragma unroll 1
    for (int n = new_thread_id(); n < q.kBytes / 16; n += kKeyThreads) pieces[n] = finite_eight<E>(pieces[n]);
    async_proxy_fence();
    numbered_barrier_wait(Pipeline::kAllKeys, kKeyThreads);
  }
  // dV has no such sign in P: what has a weight of 0 does not exist. The weights are where dS will be.
  __device__ __forceinline__ void select_into_dv(typename Pipeline::DoutTile dout, int tile) {
    const LanePlace lane = lane_place();
    const auto weights = pipeline.gradient(tile);
    const auto at_row = [](auto rows, int row, int column) {
      return __cvta_shared_to_generic(rows.piece(row, column) + column % 8 * 2);
    };
#pragma unroll 1
    for (int query = 0; query < C.tile_q; ++query) {
      float w[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        w[r] = widen<E>(*static_cast<const unsigned short*>(at_row(weights, query, lane.row + 8 * r)));
#pragma unroll
      for (int n = 0; n < C.dim_v / 8; ++n) {
        const unsigned two = *static_cast<const unsigned*>(at_row(dout, query, 8 * n + lane.column));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float value = widen<E>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
          if (w[x / 2] != 0) dv[n].x[x] += w[x / 2] * value;
        }
      }
    }
  }

  __device__ __forceinline__ void wait_for_queries() const {
    barrier_wait(pipeline.q_full(queries.stage), queries.phase);
  }
  __device__ __forceinline__ void write_gradient(const Weights& gradient, int buffer) const {
    store(gradient, buffer);
    async_proxy_fence();
    numbered_barrier_arrive(Pipeline::written(group, buffer), Pipeline::kPair);
  }
  __device__ __forceinline__ void wait_for_reader(int buffer) const {
    if (number >= kGradientTiles) numbered_barrier_wait(Pipeline::read(group, buffer), Pipeline::kPair);
  }
  __device__ __forceinline__ void release_queries(int stage) const {
    if (new_thread_id() % 32 == 0) barrier_arrive(pipeline.empty(stage));
  }
  // The next tile of queries is there, if there is one.
  __device__ __forceinline__ void advance() {
    queries.advance(), ++number;
    if (number < count) wait_for_queries();
  }

  // Scores of the tile that is there, with nothing to do meanwhile.
  __device__ __forceinline__ void multiply_scores(Scores& s) const {
    issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    products_wait<0>();
    pin_all(s[0]);
  }

  // How the tile of this step is visited: guarded by all warpgroups or by none, and else by the keys that each has.
  __device__ __forceinline__ Pass pass(int step) const {
    const float* stats = pipeline.stats(queries.stage);
    const Place& at = place();
    const bool edge = step < at.walk.edge, guarded = has_large_rows<kShared>(stats) || (edge && stats[kFlag] != 0);
    Pass pass = guarded ? Pass::guarded : Pass::full;
    if (edge && !guarded) {
      const int64 first = at.first + group * kWarpgroupRows;
      pass = pass_of<kShared>(a, at.sequence, {first, first + kWarpgroupRows}, at.walk.tile(step));
    }
    return static_cast<Pass>(uniform(static_cast<int>(pass)));
  }

  // One tile of queries whose scores are there; at the end those of the next are. Returns how that is visited.
  template <Pass kPass>
  __device__ __forceinline__ Pass visit(Scores& s, int tile, int next_step) {
    const int stage = queries.stage, buffer = number % kGradientTiles;
    const float* stats = pipeline.stats(stage);
    Weights w;
    if constexpr (kPass != Pass::full) hide(s, a, place(), tile);
    weigh_small<kShared, kPass>(s, stats, lane_place().column, p.exponent);
    narrow_weights(w, s);
    pin_all(w);
    barrier_wait(pipeline.o_full(stage), queries.phase);
    issue_scores<true>(s, pipeline.v(), pipeline.dout(stage));
    issue_sums<DvProduct>(dv, w, pipeline.dout(stage));
    products_wait<1>();
    pin_all(s[0]);
    differentiate<kPass>(s, w, stats);
    pin_all(s[0]);
    // In a loop, or the compiler waits before dS is computed; it runs once.
    do products_wait<0>();
    while (a.group == 0);
    pin_all(w), pin_all(dv);
    narrow_weights(w, s);
    issue_sums<DkProduct>(dk, w, pipeline.q(stage));
    wait_for_reader(buffer);
    write_gradient(w, buffer);
    // Behind the last one nobody asks for these scores: products without a branch.
    advance();
    issue_scores(s, pipeline.k(), pipeline.q(queries.stage));
    products_wait<1>();
    pin_all(w), pin_all(dk);
    release_queries(stage);
    const Pass next = pass(next_step);
    products_wait<0>();
    pin_all(s[0]);
    return next;
  }
  // The same of one that holds something that is not finite, and not for everybody, or LSE that are large: one product at a
  // time.
  __device__ __forceinline__ void visit_guarded(Scores& s, int tile) {
    const int stage = queries.stage, buffer = number % kGradientTiles;
    const float* stats = pipeline.stats(stage);
    const bool selects = uniform(stats[kFlag] != 0);
    Weights w;
    hide(s, a, place(), tile);
    weigh_any_size<kShared, Pass::guarded>(s, stats, lane_place().column, static_cast<float>(a.scale), p.exponent);
    narrow_weights(w, s);
    pin_all(w);
    if (selects) clear_not_finite(pipeline.q(stage));
    barrier_wait(pipeline.o_full(stage), queries.phase);
    issue_scores(s, pipeline.v(), pipeline.dout(stage));
    products_wait<0>();
    pin_all(s[0]);
    wait_for_reader(buffer);
    if (selects) {
      store(w, buffer);
      __syncwarp();
      select_into_dv(pipeline.dout(stage), buffer);
      __syncwarp();
    } else {
      issue_sums<DvProduct>(dv, w, pipeline.dout(stage));
      products_wait<0>();
      pin_all(dv);
    }
    differentiate<Pass::guarded>(s, w, stats);
    narrow_weights(w, s);
    write_gradient(w, buffer);
    issue_sums<DkProduct>(dk, w, pipeline.q(stage));
    products_wait<0>();
    pin_all(dk);
    release_queries(stage);
    advance();
    multiply_scores(s);
  }

  // The same of one that sees none of this warpgroup's keys.
  __device__ __forceinline__ void visit_hidden(Scores& s) {
    const int stage = queries.stage, buffer = number % kGradientTiles;
    barrier_wait(pipeline.o_full(stage), queries.phase);
    wait_for_reader(buffer);
    write_gradient(Weights{}, buffer);
    release_queries(stage);
    advance();
    multiply_scores(s);
  }

  // As many tiles as there are of one kind.
  template <Pass kPass>
  __device__ __forceinline__ Pass visit_all(Scores& s, int& step, int steps) {
    Pass next;
#pragma unroll 1
    do {
      const int tile = kPass == Pass::full ? 0 : uniform(place().walk.tile(step));
      if (++step == steps) step = 0;
      next = visit<kPass>(s, tile, step);
    } while (number < count && next == kPass);
    return next;
  }

  __device__ __forceinline__ void walk() {
    const int steps = uniform(place().walk.count());
    wait_for_queries();
    Scores s;
    multiply_scores(s);
    barrier_wait(pipeline.v_full(), keys_phase);
    int step = 0;
    Pass next = pass(0);
#pragma unroll 1
    while (number < count) {
      switch (next) {
        case Pass::full: next = visit_all<Pass::full>(s, step, steps); break;
        case Pass::masked: next = visit_all<Pass::masked>(s, step, steps); break;
        case Pass::hidden:
        case Pass::guarded:
          if (next == Pass::hidden) visit_hidden(s);
          else visit_guarded(s, uniform(place().walk.tile(step)));
          if (++step == steps) step = 0;
          next = pass(step);
      }
      converge();
    }
  }

  __device__ __forceinline__ void store_sums() const {
    const LanePlace lane = lane_place();
    const Place& at = place();
    const bool written[2] = {lane.row < at.written, lane.row + 8 < at.written};
    const int64 first = at.sequence.k_begin + at.first + lane.row;
    const auto to = [&](const RowsView& rows, const auto& sums, float factor, int dim) {
      if (!rows.data) return;
      const RowStore<E, sizeof sums / sizeof sums[0]> store{
          sums, {factor, factor}, {written[0], written[1]}, lane.column / 2, dim};
      store.to(rows, offset_of(rows, at.b, at.head_k, first));
    };
    to(p.backward.dk, dk, static_cast<float>(a.scale), a.dim_qk);
    to(p.backward.dv, dv, 1.0f, a.dim_v);
  }

  __device__ __forceinline__ void clear_sums() {
#pragma unroll
    for (int n = 0; n < C.dim_qk / 8; ++n) dk[n] = {};
#pragma unroll
    for (int n = 0; n < C.dim_v / 8; ++n) dv[n] = {};
    pin_all(dk), pin_all(dv);
  }

  // One tile of keys after the other.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;; places.advance(), keys_phase ^= 1) {
      barrier_wait(pipeline.k_full(), keys_phase);
      converge();
      if (uniform(place().written) < 0) break;
      number = 0, count = uniform(place().group * place().walk.count());
      clear_sums();
      if (count > 0) walk();
      if (new_thread_id() % 32 == 0) barrier_arrive(pipeline.k_free());
      store_sums();
      converge();
    }
  }
};

}  // namespace cuflash
