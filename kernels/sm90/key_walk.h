// What warpgroups with sums of dK or dV have in common: they walk over tiles of keys, and for each over the tiles of
// queries that see them; products of scores and of sums; dS on its way to the warpgroup that computes dQ.
#pragma once

#include "ptx/warpgroup.h"
#include "sm90/backward_pipeline.h"
#include "sm90/key_scores.h"
#include "sm90/products.h"
#include "sm90/ring.h"
#include "sm90/store.h"
#include "tile/finite.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct KeyWalk : KeyScores<C> {
  using Base = KeyScores<C>;
  using Base::E, Base::kShared, Base::kSteps, Base::lane_coord;
  using typename Base::Scores, typename Base::Weights;
  static constexpr int kFlag = flag_at(kShared);
  static_assert(size_of(E) == 2 && C.dim_qk % 32 == 0 && C.dim_v % 32 == 0);
  using Pipeline = BackwardPipeline<C>;
  using ScoreProduct = WarpgroupProduct<E, C.tile_q, false>;
  using DkProduct = WarpgroupProduct<E, C.dim_qk, true>;
  using DvProduct = WarpgroupProduct<E, C.dim_v, true>;

  const Sm90BackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  int group;  // which 64 of the keys
  Ring<C.stages> queries;
  PhaseRing<kPlaces> keys;
  int number, count;  // of this step, of all steps with these keys
  int buffer;         // of those that it writes for others
  int edge;           // steps of a head that have to be asked what they see
  // In shared memory: LSE of the lane's first query, of stage 0, and where its part of the first tile of dS begins. Found
  // anew in every step they would cost an answer of the special registers each, which comes late.
  unsigned lane_stats, lane_gradient;

  __device__ KeyWalk(const Sm90BackwardParams& p, const Pipeline& pipeline, int group)
      : p(p), a(p.backward.attention), pipeline(pipeline), group(group) {
    const int thread = splits_sums(C) ? new_thread_id() % kWarpgroupThreads : new_thread_id(), lane = thread % 32;
    lane_stats = pipeline.stats_address(0) + lane % 4 * 8;
    lane_gradient = pipeline.gradient(0).piece(lane / 16 * 8 + lane % 8, thread / 32 * 16 + lane / 8 % 2 * 8);
  }

  __device__ __forceinline__ const Place& place() const { return pipeline.place(keys.place()); }

  // s = the warpgroup's rows of `keys`, times those of `rows`.
  template <int kColumns>
  __device__ __forceinline__ void issue_scores(Scores& s, SwizzledTile<Pipeline::kTileK, kColumns> keys,
                                               SwizzledTile<C.tile_q, kColumns> rows) const {
    keys.address += group * kWarpgroupRows * kPanelRowBytes;
    asm volatile("" : "+r"(keys.address));  // or all of its descriptors stay in registers
    wgmma_fence();
    ScoreProduct::start(s[0], keys.along_rows(0), rows.along_rows(0));
#pragma unroll
    for (int step = 1; step < (kColumns + 15) / 16; ++step)
      ScoreProduct::add(s[0], keys.along_rows(step), rows.along_rows(step));
    wgmma_commit();
  }
  // sums += w rows.
  template <class Product, int kTiles, int kColumns>
  __device__ __forceinline__ void issue_sums(Accumulator<float> (&sums)[kTiles], Weights& w,
                                             SwizzledTile<C.tile_q, kColumns> rows) const {
    fence_operands(w);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) Product::add(sums, w[step], rows.across_rows(step));
    wgmma_commit();
  }

  using typename Base::RowValues;
  __device__ __forceinline__ void load_lse(RowValues& lse, int stage) const {
    Base::load_rows(lse, lane_stats + stage * Pipeline::kStatsRoom);
  }
  __device__ __forceinline__ void load_delta(RowValues& delta, int stage) const {
    Base::load_rows(delta, lane_stats + stage * Pipeline::kStatsRoom + 4 * Base::kDelta);
  }

  // Where nobody computes dQ there is one, for weights that are summed by a selection.
  __device__ __forceinline__ int gradient_buffer() const { return C.dq ? buffer : 0; }
  // Into the warp's columns of a tile of dS, which has queries in rows.
  __device__ __forceinline__ void store(const Weights& w) const {
    const unsigned address = lane_gradient + gradient_buffer() * Pipeline::GradientTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) stmatrix_x4_trans(address + step * 16 * kPanelRowBytes, w[step]);
  }

  // Elements of Q that are not finite are left out of dS^T Q: weights of 0 hide no NaN from products, and whoever sees
  // them has a dS that is NaN. By all `kThreads` that have multiplied these queries for their scores.
  template <int kThreads>
  __device__ __forceinline__ void clear_not_finite(typename Pipeline::QTile q) const {
    named_barrier_sync(Pipeline::kAllKeys, kThreads);
    auto* pieces = static_cast<uint4*>(__cvta_shared_to_generic(q.address));
#pragma unroll 1
    for (int n = new_thread_id() % kThreads; n < q.kBytes / 16; n += kThreads) pieces[n] = finite_eight<E>(pieces[n]);
    async_proxy_fence();
    named_barrier_sync(Pipeline::kAllKeys, kThreads);
  }
  // dV has no such sign in P: what has a weight of 0 does not exist. weight(query, r): of this lane's key r = 0, 1.
  template <int kTiles, class Weight>
  __device__ __forceinline__ void select_into(Accumulator<float> (&dv)[kTiles], typename Pipeline::DoutTile dout,
                                              Weight weight) const {
    const LaneCoord lane = lane_coord();
#pragma unroll 1
    for (int query = 0; query < C.tile_q; ++query) {
      const float w[2] = {weight(query, 0), weight(query, 1)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const unsigned two =
            *static_cast<const unsigned*>(__cvta_shared_to_generic(dout.piece(query, 8 * n) + lane.column * 2));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float value = widen<E>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
          if (w[x / 2] != 0) dv[n].x[x] += w[x / 2] * value;
        }
      }
    }
  }

  __device__ __forceinline__ void wait_for_queries() const {
    mbarrier_wait(pipeline.q_full(queries.stage), queries.phase);
  }
  __device__ __forceinline__ void wait_for_douts() const {
    mbarrier_wait(pipeline.o_full(queries.stage), queries.phase);
  }
  // dS for the warpgroup that computes dQ, if one does.
  __device__ __forceinline__ void write_gradient(const Weights& gradient) const {
    if constexpr (C.dq != 0) {
      store(gradient);
      async_proxy_fence();
      named_barrier_arrive(Pipeline::written(group, buffer), Pipeline::kPair);
    }
  }
  __device__ __forceinline__ void wait_for_reader() const {
    if constexpr (C.dq != 0) named_barrier_sync(Pipeline::read(group, buffer), Pipeline::kPair);
  }
  // All lanes have read the statistics: barriers for dS say so, where there are some.
  __device__ __forceinline__ void release_queries(int stage) const {
    if constexpr (C.dq == 0) __syncwarp();
    if (new_thread_id() % 32 == 0) mbarrier_arrive(pipeline.empty(stage));
  }
  __device__ __forceinline__ void step_on() { queries.advance(), ++number, buffer ^= 1; }
  // The next tile of queries is there, if there is one.
  __device__ __forceinline__ void advance() {
    step_on();
    if (number < count) wait_for_queries();
  }

  // How the tile of this step is visited: guarded by all warpgroups or by none, and else by the keys that each has.
  __device__ __forceinline__ Pass pass(int step) const {
    const float* stats = pipeline.stats(queries.stage);
    // Hidden scores become weights of 0 by a factor above 0 alone.
    const bool asks = step < edge,
               guarded = has_large_rows<kShared>(stats) || (asks && (stats[kFlag] != 0 || !(p.exponent > 0)));
    Pass pass = guarded ? Pass::guarded : Pass::full;
    if (asks && !guarded) {
      const Place& at = place();
      const int64 first = at.first + group * kWarpgroupRows;
      pass = pass_of<kShared>(a, at.sequence, {first, first + kWarpgroupRows}, at.walk.tile(step));
    }
    return static_cast<Pass>(uniform(static_cast<int>(pass)));
  }

  template <int kTiles>
  static __device__ __forceinline__ void clear(Accumulator<float> (&sums)[kTiles]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) sums[n] = {};
    fence_operands(sums);
  }
  template <int kTiles>
  __device__ __forceinline__ void store_rows(const RowsView& rows, const Accumulator<float> (&sums)[kTiles],
                                             float factor, int dim) const {
    const Place& at = place();
    const LaneCoord lane = lane_coord();
    if (!rows.data) return;
    const RowStore<E, kTiles> store{
        sums, {factor, factor}, {lane.row < at.written, lane.row + 8 < at.written}, lane.column / 2, dim};
    store.to(rows, offset_of(rows, at.b, at.head_k, at.sequence.k_begin + at.first + lane.row));
  }

  // One tile of keys after the other.
  template <class Group>
  __device__ __forceinline__ void run_all(Group& sums) {
#pragma unroll 1
    for (;; keys.advance()) {
      mbarrier_wait(pipeline.k_full(), keys.phase());
      converge();
      if (uniform(place().written) < 0) break;
      number = buffer = 0, count = uniform(place().group * place().walk.count()), edge = uniform(place().walk.edge);
      sums.clear_sums();
      if (count > 0) sums.walk();
      if (new_thread_id() % 32 == 0) mbarrier_arrive(pipeline.k_free());
      sums.store_sums();
      converge();
    }
  }
};

}  // namespace cuflash
