// Base of the backward consumers, which accumulate dK or dV: the persistent loop over key tiles, waits and releases of
// the pipeline, wgmma issue, and the hand-over of dS to the producer for dQ.
#pragma once

#include "ptx/warpgroup.h"
#include "sm90/backward/key_scores.h"
#include "sm90/backward/pipeline.h"
#include "sm90/consumer_sync.h"
#include "sm90/products.h"
#include "sm90/ring.h"
#include "sm90/store.h"
#include "tile/finite.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct KeyConsumer : KeyScores<C> {
  using Base = KeyScores<C>;
  using Base::E, Base::kPortable, Base::kSteps, Base::lane_coord;
  using typename Base::Scores, typename Base::OperandA, typename Base::Options;
  static constexpr int kFlag = flag_at(kPortable);
  static_assert(size_of(E) == 2 && C.dim_qk % 32 == 0 && C.dim_v % 32 == 0);
  using Pipeline = BackwardPipeline<C>;
  using ScoreProduct = WarpgroupProduct<E, C.tile_q, false>;
  using DkProduct = WarpgroupProduct<E, C.dim_qk, true>;
  using DvProduct = WarpgroupProduct<E, C.dim_v, true>;

  const Sm90BackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  int group;  // which 64 of the tile's keys
  Ring<C.stages> queries;
  PhaseRing<kTaskSlots> keys;
  int iteration, count;  // index of this step, number of steps of the key tile
  int buffer;            // the buffer of dS or P that this step writes
  int num_masked;        // steps of a head that may be masked
  // Shared addresses: LSE of the lane's first query in stage 0, and the lane's part of the first dS buffer. Computing
  // them in every step would wait for a read of the special registers.
  unsigned lane_stats, lane_ds;

  __device__ KeyConsumer(const Sm90BackwardParams& p, const Pipeline& pipeline, int group)
      : p(p), a(p.backward.attention), pipeline(pipeline), group(group) {
    const int thread = split_dk_dv(C) ? new_thread_id() % kWarpgroupThreads : new_thread_id(), lane = thread % 32;
    lane_stats = pipeline.stats_address(0) + lane % 4 * 8;
    lane_ds = pipeline.ds_tile(0).piece(lane / 16 * 8 + lane % 8, thread / 32 * 16 + lane / 8 % 2 * 8);
  }

  __device__ __forceinline__ const KeyTask& task() const { return pipeline.task(keys.slot()); }

  // s = the warpgroup's rows of `keys` times `rows`.
  template <int kColumns>
  __device__ __forceinline__ void issue_scores(Scores& s, SwizzledTile<Pipeline::kTileK, kColumns> keys,
                                               SwizzledTile<C.tile_q, kColumns> rows) const {
    keys.address += group * kWarpgroupRows * kPanelRowBytes;
    issue_wgmma_ss<ScoreProduct, kColumns>(s[0], rematerialize(keys), 0, rows);
  }
  // acc += probs rows; probs is P or dS.
  template <class Product, int kTiles, int kColumns>
  __device__ __forceinline__ void issue_accumulate(Accumulator<float> (&acc)[kTiles], OperandA& probs,
                                                   SwizzledTile<C.tile_q, kColumns> rows) const {
    issue_wgmma_rs<Product>(acc, probs, rows);
  }

  using typename Base::RowValues;
  __device__ __forceinline__ void load_lse(RowValues& lse, int stage) const {
    Base::load_rows(lse, lane_stats + stage * Pipeline::kStatsStageBytes);
  }
  __device__ __forceinline__ void load_delta(RowValues& delta, int stage) const {
    Base::load_rows(delta, lane_stats + stage * Pipeline::kStatsStageBytes + 4 * Base::kDelta);
  }

  __device__ __forceinline__ unsigned lane_delta(int stage) const {
    return lane_stats + stage * Pipeline::kStatsStageBytes + 4 * Base::kDelta;
  }
  // Without dQ there is a single buffer, for P of tiles whose dV is accumulated with a select.
  __device__ __forceinline__ int ds_buffer() const { return C.dq ? buffer : 0; }
  // Stores the operand into the warp's columns of a dS buffer, which has one row per query.
  __device__ __forceinline__ void store(const OperandA& probs, int ds_buffer) const {
    const unsigned address = lane_ds + ds_buffer * Pipeline::DsTile::kBytes;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) stmatrix_x4_trans(address + step * 16 * kPanelRowBytes, probs[step]);
  }

  // Store and load factors of dS in the buffer that dS is written to later. Lanes read only what lanes of their own
  // warp have written.
  __device__ __forceinline__ void store_factors(int step, const unsigned (&factors)[4]) const {
    stmatrix_x4_trans(lane_ds + ds_buffer() * Pipeline::DsTile::kBytes + step * 16 * kPanelRowBytes, factors);
  }
  __device__ __forceinline__ void load_factors(int step, unsigned (&factors)[4]) const {
    ldmatrix_x4_trans(lane_ds + ds_buffer() * Pipeline::DsTile::kBytes + step * 16 * kPanelRowBytes, factors);
  }
  __device__ __forceinline__ const StepInfo& step_info() const { return pipeline.step_info(queries.stage); }
  __device__ __forceinline__ typename Base::GuardedExponents guarded_exponents() const {
    return {p, task(), step_info(), pipeline.stats(queries.stage),
            lane_stats + queries.stage * Pipeline::kStatsStageBytes};
  }
  // The lane's part of the current stage's bias.
  __device__ __forceinline__ typename Base::LaneBias lane_bias() const {
    if constexpr (!Options::kHasBias) return {};
    const auto bias = pipeline.bias(queries.stage);
    if (a.bias.row_stride != 0) return {lane_ds - pipeline.ds_tile(0).address + bias.address, 16 * kPanelRowBytes};
    const int thread = new_thread_id() % (kWarpgroupThreads * C.warpgroups);
    return {bias.piece(0, thread / 32 * 16 + thread / 8 % 2 * 8), 0};
  }
  // The pairs of the current stage that dropout keeps.
  __device__ __forceinline__ unsigned kept_pairs() const { return Base::kept_pairs_of(a, task(), step_info()); }
  __device__ __forceinline__ void correct_alibi(Scores& s) const {
    if constexpr (Options::kAffineAlibi) typename Base::Alibi(step_info()).correct(s);
  }
  // The query tile of the step, whose stage must be the current one.
  __device__ __forceinline__ int tile_of(int step) const {
    if constexpr (Options::kHasMask) return step_info().q_first / C.tile_q;
    else return task().visited.tile(step);
  }
  // Pairs that are visible by position; all of them if the tile is not masked.
  __device__ __forceinline__ unsigned seen_pairs(bool masked, int step) const {
    return masked ? Base::visible_pairs(a, task(), uniform(tile_of(step))) : ~0u;
  }
  // Pairs that the mask tensor shows.
  __device__ __forceinline__ unsigned tensor_mask() const {
    if constexpr (!Options::kHasMask) return ~0u;
    if (uniform(ListedMaskTile{step_info().mask_tile}.shows_all(group))) return ~0u;
    return pipeline.mask(queries.stage, group, task().k_first, a.summary.rows > 1).pairs_of_keys(new_thread_id());
  }

  // Zeroes non-finite elements of Q before dS^T Q: a dS of 0 would not stop a NaN, and a key that sees the element has
  // a NaN in its dS anyway. Called by all kThreads whose scores have used this Q.
  template <int kThreads>
  __device__ __forceinline__ void zero_not_finite(typename Pipeline::QTile q) const {
    named_barrier_sync(Pipeline::kConsumerBarrier, kThreads);
    auto* pieces = static_cast<uint4*>(__cvta_shared_to_generic(q.address));
#pragma unroll 1
    for (int n = new_thread_id() % kThreads; n < q.kBytes / 16; n += kThreads) pieces[n] = finite_eight<E>(pieces[n]);
    async_proxy_fence();
    named_barrier_sync(Pipeline::kConsumerBarrier, kThreads);
  }
  // dV += P^T dO without the terms whose P is 0. P, unlike dS, does not become NaN at a visible non-finite element, so
  // dO cannot be zeroed. prob(query, r) returns P of the lane's key r = 0, 1.
  template <int kTiles, class Prob>
  __device__ __forceinline__ void accumulate_selected(Accumulator<float> (&dv)[kTiles],
                                                      typename Pipeline::DoutTile dout, Prob prob) const {
    const LaneCoord lane = lane_coord();
#pragma unroll 1
    for (int query = 0; query < C.tile_q; ++query) {
      const float probs[2] = {prob(query, 0), prob(query, 1)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const unsigned two =
            *static_cast<const unsigned*>(__cvta_shared_to_generic(dout.piece(query, 8 * n) + lane.column * 2));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float value = widen<E>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
          if (probs[x / 2] != 0) dv[n].x[x] += probs[x / 2] * value;
        }
      }
    }
  }

  __device__ __forceinline__ void wait_for_queries() const {
    mbarrier_wait(pipeline.q_full(queries.stage), queries.phase);
  }
  __device__ __forceinline__ void wait_for_douts() const {
    mbarrier_wait(pipeline.dout_full(queries.stage), queries.phase);
  }
  // Hands dS over to the warpgroup that computes dQ, if one does.
  __device__ __forceinline__ void write_ds(const OperandA& ds, int buffer) const {
    if constexpr (C.dq != 0) {
      store(ds, buffer);
      async_proxy_fence();
      named_barrier_arrive(Pipeline::ds_written(buffer), Pipeline::kDsThreads);
    }
  }
  __device__ __forceinline__ void wait_ds_free(int buffer) const {
    if constexpr (C.dq != 0) named_barrier_sync(Pipeline::ds_read(group, buffer), Pipeline::kPair);
  }
  // All lanes must have read the row statistics. With dQ the named barriers of dS guarantee that.
  __device__ __forceinline__ void release_queries(int stage) const {
    if constexpr (C.dq == 0) __syncwarp();
    release_stage(pipeline.q_empty(stage), new_thread_id() % 32);
  }
  __device__ __forceinline__ void advance_stage() { queries.advance(), ++iteration, buffer ^= 1; }
  // Waits for the next query tile, if there is one.
  __device__ __forceinline__ void advance() {
    advance_stage();
    if (iteration < count) wait_for_queries();
  }

  // Mode of a step. All warpgroups agree on guarded; otherwise the mode depends on the keys of each warpgroup.
  __device__ __forceinline__ TileMode mode(int step) const {
    const float* stats = pipeline.stats(queries.stage);
    // A hidden score of -inf becomes a probability of 0 only if the scale is positive.
    const bool may_mask = step < num_masked,
               guarded = has_large_rows<kPortable>(stats) ||
                         (may_mask && (stats[kFlag] != 0 || (!Options::kMasksP && !(p.scale_log2 > 0))));
    TileMode mode = guarded ? TileMode::guarded : TileMode::full;
    if (may_mask && !guarded) {
      const TaskCoord& coord = task();
      const int64 first = coord.k_first + group * kWarpgroupRows;
      mode = tile_mode<kPortable>(a, coord.sequence, {first, first + kWarpgroupRows}, tile_of(step));
      // LSE hides queries beyond the sequence only if their scores are numbers.
      if constexpr (Options::kMayMaskAnyPair)
        if (mode == TileMode::full && (int64{tile_of(step)} + 1) * C.tile_q > coord.sequence.len_q)
          mode = TileMode::masked;
    }
    return static_cast<TileMode>(uniform(static_cast<int>(mode)));
  }

  template <int kTiles>
  static __device__ __forceinline__ void clear(Accumulator<float> (&acc)[kTiles]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) acc[n] = {};
    fence_operands(acc);
  }
  // Stores or adds the accumulators of a part to the sums of its 64 keys, unscaled, including the padding of dim, which
  // is zero.
  template <int kTiles>
  __device__ __forceinline__ void sum_rows(float* sums, const Accumulator<float> (&acc)[kTiles]) const {
    const int thread = new_thread_id() % kWarpgroupThreads, row = thread / 32 * 16;
    if (group * kWarpgroupRows + row >= task().written) return;
    float* to = sums + ((sums_tile(p.backward, task()) + group) * (kSumKeys / 16) + row / 16) * (kTiles * 128) +
                thread % 32 * 4;
    const bool adds = p.backward.part_tiles == 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      if (adds) add_four_to_global(to + n * 128, acc[n].x, true);
      else store_to_global(to + n * 128, acc[n].x);
  }
  // Stores dK or dV of the 64 keys, or adds it to `sums`, the sums of all parts, unless that is null.
  template <int kTiles>
  __device__ __forceinline__ void store_rows(const RowsView& rows, float* sums, const Accumulator<float> (&acc)[kTiles],
                                             float factor, int dim) const {
    const KeyTask& coord = task();
    const LaneCoord lane = lane_coord();
    if (!rows.data) return;
    if (sums) {
      sum_rows(sums, acc);
      return;
    }
    using Factor = GradientFactor<C.options>;
    const float scale = Factor::of_scale(factor);
    const RowStore<E, kTiles, Factor::kMayBeZero> store{
        acc, {scale, scale}, {lane.row < coord.written, lane.row + 8 < coord.written}, lane.column / 2, dim};
    store.to_global(rows, offset_of(rows, coord.b, coord.head_k, coord.sequence.k_begin + coord.k_first + lane.row));
  }

  // Scale of dV: P of kept pairs lacks the factor 1 / (1 - dropout_p).
  __device__ __forceinline__ float dv_factor() const { return Options::kHasDropout ? p.factors.keep : 1.0f; }

  // Persistent loop over key tiles.
  template <class Derived>
  __device__ __forceinline__ void run_persistent(Derived& derived) {
#pragma unroll 1
    for (;; keys.advance()) {
      mbarrier_wait(pipeline.k_full(), keys.phase());
      converge();
      if (uniform(task().written) < 0) break;
      iteration = buffer = 0, count = uniform(task().group * task().visited.count()),
      num_masked = uniform(task().visited.num_masked);
      derived.clear_accumulators();
      if (count > 0) derived.mainloop();
      release_stage(pipeline.k_empty(), new_thread_id() % 32);
      derived.store_accumulators();
      converge();
    }
  }
};

}  // namespace cuflash
