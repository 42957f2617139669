// Consumer warpgroup of the dQ kernel: dQ of 64 queries of each query tile. wgmma.mma_async overlaps with the
// exponentials: while dS K of one key tile runs, the warpgroup computes P of the next tile, whose scores were issued
// before.
//
//   wait K(n+1) | issue S = Q K(n+1) | issue dQ += dS K(n) | wait S | P from S | wait V(n+1) | issue dP = dO V(n+1) |
//   wait dQ, dP | dS
#pragma once

#include "sm90/consumer_sync.h"
#include "sm90/dq/pipeline.h"
#include "sm90/dq/scores.h"
#include "sm90/products.h"
#include "sm90/store.h"
#include "sm90/tile_scheduler.h"

namespace cuflash {

template <Sm90DqConfig C>
struct DqConsumer : DqScores<C> {
  using Base = DqScores<C>;
  using Base::E, Base::kPortable, Base::kKeyTiles, Base::kSteps, Base::lane_coord;
  using typename Base::Scores, typename Base::OperandA, typename Base::Rows;
  static_assert(size_of(E) == 2 && C.tile_k % 16 == 0 && C.dim_qk % 32 == 0 && C.dim_v % 32 == 0);
  static_assert(C.key_stages >= 2 && C.value_stages >= 1);
  static constexpr int kDqTiles = C.dim_qk / 8;
  using Pipeline = DqPipeline<C>;
  using Turn = PingPong<C.ping_pong != 0, C.warpgroups, Pipeline::kPingPongBarrier>;
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;
  using DqProduct = WarpgroupProduct<E, C.dim_qk, true>;
  using DqAccumulator = Accumulator<float>[kDqTiles];

  const Sm90BackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  int group;  // index of the consumer warpgroup
  TileScheduler scheduler;
  Ring<C.key_stages> keys;  // stage of the next key tile to multiply by dS
  Ring<C.value_stages> values;

  __device__ DqConsumer(const Sm90BackwardParams& p, const Pipeline& pipeline, int group)
      : p(p), a(p.backward.attention), pipeline(pipeline), group(group) {}

  __device__ const float* stats() const { return pipeline.stats(group, scheduler.round); }
  __device__ const StepInfo& step_info() const { return pipeline.step_info(group, scheduler.round); }

  // Shared address of the lane's part of a stage's bias.
  __device__ __forceinline__ unsigned lane_bias(const Ring<C.key_stages>& at) const {
    if constexpr (!Base::Options::kHasBias) return 0;
    const int thread = new_thread_id(), row = thread / 32 % 4 * 16 + thread % 16;
    return pipeline.bias(at.stage, group).piece(a.bias.row_stride != 0 ? row : 0, thread % 32 / 16 * 8);
  }

  // The key tile of a stage, which is number n of those that the query tile visits.
  __device__ __forceinline__ int key_tile(int n, const Ring<C.key_stages>& at) const {
    if constexpr (Base::Options::kHasMask) return uniform(pipeline.listed_tile(at.stage).tile());
    else return n;
  }
  __device__ __forceinline__ unsigned tensor_mask(const Ring<C.key_stages>& at) const {
    if constexpr (!Base::Options::kHasMask) return ~0u;
    const ListedMaskTile listed = pipeline.listed_tile(at.stage);
    if (uniform(listed.shows_all(group))) return ~0u;
    return pipeline.mask(at.stage, group, listed.tile() * C.tile_k, a.summary.rows > 1)
        .pairs_of_queries(new_thread_id());
  }

  __device__ void wait_queries() const {
    mbarrier_wait(pipeline.q_full(group, scheduler.round), pipeline.query_phase(scheduler.round));
  }
  // __syncwarp() makes sure that all lanes have read the row statistics.
  __device__ void release_queries() const {
    __syncwarp();
    release_stage(pipeline.q_empty(group, scheduler.round));
  }
  __device__ void wait_keys(const Ring<C.key_stages>& at) const { mbarrier_wait(pipeline.k_full(at.stage), at.phase); }
  __device__ void release_keys() {
    release_stage(pipeline.k_empty(keys.stage));
    keys.advance();
  }
  __device__ void wait_values() const { mbarrier_wait(pipeline.v_full(values.stage), values.phase); }
  __device__ void release_values() {
    release_stage(pipeline.v_empty(values.stage));
    values.advance();
  }
  // Releases tiles that only the other warpgroups of the CTA need.
  __device__ void skip(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      Turn::wait(group), Turn::pass(group);
      wait_keys(keys), release_keys();
      wait_values(), release_values();
    }
  }

  // s = the warpgroup's rows of Q or dO times a tile of K or V.
  template <int kColumns>
  static __device__ __forceinline__ void issue_scores(Scores& s, SwizzledTile<kWarpgroupRows, kColumns> rows,
                                                      SwizzledTile<C.tile_k, kColumns> of_keys) {
    issue_wgmma_ss<ScoreProduct, kColumns>(s, rematerialize(rows), 0, of_keys);
  }
  __device__ __forceinline__ void issue_scores(Scores& s, const Ring<C.key_stages>& at) const {
    issue_scores(s, pipeline.q(group, scheduler.round), pipeline.k(at.stage));
  }
  __device__ __forceinline__ void issue_dp(Scores& dp) const {
    issue_scores(dp, pipeline.dout(group, scheduler.round), pipeline.v(values.stage));
  }
  __device__ __forceinline__ void issue_accumulate(DqAccumulator& dq, OperandA& ds) const {
    issue_wgmma_rs<DqProduct>(dq, ds, pipeline.k(keys.stage));
  }

  // dQ += dS K without the terms whose dS is 0, since their key may be non-finite. The four lanes of a row hold its dS.
  // The registers of dS shift by one 8-key tile per iteration, so that the loop always reads the same registers.
  __device__ __forceinline__ void accumulate_selected(DqAccumulator& dq, OperandA& ds) const {
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
        accumulate_key(dq, d, k, 8 * tile + key);
        converge();
      }
#pragma unroll
      for (int n = 0; n + 1 < kKeyTiles; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) ds[n / 2][n % 2 * 2 + r] = ds[(n + 1) / 2][(n + 1) % 2 * 2 + r];
      converge();
    }
  }
  static __device__ __forceinline__ void accumulate_key(DqAccumulator& dq, const float (&d)[2],
                                                        typename Pipeline::KTile k, int key) {
    const int column = lane_coord().column;
#pragma unroll
    for (int n = 0; n < kDqTiles; ++n) {
      const unsigned two = *static_cast<const unsigned*>(__cvta_shared_to_generic(k.piece(key, 8 * n) + column * 2));
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float value = widen<E>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
        dq[n].x[x] += d[x / 2] * (d[x / 2] != 0 ? value : 0.0f);
      }
    }
  }

  static __device__ bool is_full(const TileInfo& info, int tile) {
    return uniform(info.full_begin <= tile && tile < info.full_end);
  }
  // Whether a masked tile contains a non-finite value that wgmma would carry into rows that must not see it.
  __device__ __forceinline__ bool finds_not_finite(Scores& s, const TileInfo& info) const {
    return uniform(named_barrier_any(Pipeline::kFiniteCheckBarrier + group, kWarpgroupThreads,
                                     Base::has_not_finite_score(s, info)));
  }

  // Processes a tile without overlap: a tile with a large LSE, or a masked tile with a non-finite value.
  __device__ __forceinline__ void visit_guarded(Scores& s, DqAccumulator& dq, const TileInfo& info, int tile) {
    OperandA ds;
    if constexpr (C.options == 0) Base::exponentiate_any_size(s, a, info, tile, stats(), p.scale_log2);
    else
      Base::exponentiate_pairs_guarded(s, p, info, step_info(), key_tile(tile, keys), stats(), lane_bias(keys),
                                       tensor_mask(keys));
    Base::narrow_factors(ds, s);
    fence_operands(ds);
    wait_values();
    issue_dp(s);
    wgmma_wait<0>();
    fence_operands(s);
    release_values();
    Base::differentiate_narrow(ds, s, stats(), p.factors.keep);
    accumulate_selected(dq, ds);
    fence_operands(dq);
    __syncwarp();  // all lanes have read K
    release_keys();
  }

  template <bool kApplyMask>
  __device__ __forceinline__ void exponentiate(Scores& s, const TileInfo& info, const Rows& rows, int tile,
                                               const Ring<C.key_stages>& at) const {
    if constexpr (C.options == 0) Base::template exponentiate<kApplyMask>(s, a, info, tile, rows, p.scale_log2);
    else
      Base::template exponentiate_pairs<kApplyMask>(s, p, info, step_info(), key_tile(tile, at), rows, lane_bias(at),
                                                    tensor_mask(at));
  }
  // Computes P and dS of a tile without overlapping wgmma and math.
  template <bool kApplyMask>
  __device__ __forceinline__ void differentiate_now(OperandA& ds, Scores& s, const TileInfo& info, const Rows& rows,
                                                    int tile) {
    Scores dp;
    exponentiate<kApplyMask>(s, info, rows, tile, keys);
    fence_operands(s);
    wait_values();
    issue_dp(dp);
    wgmma_wait<0>();
    fence_operands(dp);
    release_values();
    Base::template differentiate<kApplyMask>(ds, s, dp, rows, p.factors.keep);
  }
  // Starts the pipeline at a tile. Returns true if its dS is ready, and false if the tile is already complete. again:
  // the warpgroup has already taken its ping-pong turn for this tile.
  __device__ __forceinline__ bool start(OperandA& ds, DqAccumulator& dq, const TileInfo& info, const Rows& rows,
                                        int tile, bool again) {
    Scores s;
    const bool full = is_full(info, tile);
    wait_keys(keys);
    if (!again) Turn::wait(group);
    issue_scores(s, keys);
    wgmma_wait<0>();
    fence_operands(s);
    if (!again) Turn::pass(group);
    if (uniform(has_large_rows<kPortable>(stats())) || (!full && finds_not_finite(s, info))) {
      visit_guarded(s, dq, info, tile);
      return false;
    }
    if (full) differentiate_now<false>(ds, s, info, rows, tile);
    else differentiate_now<true>(ds, s, info, rows, tile);
    return true;
  }

  // Mainloop from `tile`, whose dS is ready, down to `last`, whose dS is ready afterwards. Returns false if it stops
  // early because `tile` must be processed without overlap; all earlier tiles are then complete.
  template <bool kApplyMask>
  __device__ __forceinline__ bool advance(int& tile, int last, const TileInfo& info, const Rows& rows, OperandA& ds,
                                          DqAccumulator& dq) {
#pragma unroll 1
    while (tile > last) {
      Scores s, dp;
      Ring<C.key_stages> next = keys;
      next.advance();
      wait_keys(next);
      Turn::wait(group);
      issue_scores(s, next);
      issue_accumulate(dq, ds);
      Turn::pass(group);
      wgmma_wait<1>();
      fence_operands(s);
      --tile;
      if (kApplyMask && finds_not_finite(s, info)) {
        wgmma_wait<0>();
        fence_operands(dq), fence_operands(ds);
        release_keys();
        return false;
      }
      exponentiate<kApplyMask>(s, info, rows, tile, next);
      fence_operands(s);
      wait_values();
      issue_dp(dp);
      wgmma_wait<1>();
      fence_operands(dq), fence_operands(ds);
      release_keys();
      wgmma_wait<0>();
      fence_operands(dp);
      release_values();
      Base::template differentiate<kApplyMask>(ds, s, dp, rows, p.factors.keep);
    }
    return true;
  }
  // Advances through masked tiles at the end, full tiles, and masked tiles at the beginning.
  __device__ __forceinline__ bool advance_all(int& tile, const TileInfo& info, const Rows& rows, OperandA& ds,
                                              DqAccumulator& dq) {
    // Two iterations over the same code: the second has no full tiles.
#pragma unroll 1
    for (int last = uniform(info.full_end);; last = uniform(info.warpgroup_begin)) {
      if (!advance<true>(tile, last, info, rows, ds, dq)) return false;
      if (last == uniform(info.warpgroup_begin)) return true;
      if (!advance<false>(tile, uniform(info.full_begin), info, rows, ds, dq)) return false;
    }
  }
  __device__ __forceinline__ void mainloop(DqAccumulator& dq, const TileInfo& info) {
    const Rows rows(stats());
    int tile = uniform(info.warpgroup_end) - 1;
    bool again = false;
#pragma unroll 1
    while (tile >= uniform(info.warpgroup_begin)) {
      OperandA ds;
      if (!start(ds, dq, info, rows, tile, again)) {
        --tile, again = false;
      } else if (again = !advance_all(tile, info, rows, ds, dq); !again) {
        issue_accumulate(dq, ds);
        wgmma_wait<0>();
        fence_operands(dq), fence_operands(ds);
        release_keys();
        --tile;
      }
      converge();
    }
  }

  __device__ __forceinline__ void store(const TileInfo& info, const DqAccumulator& dq) const {
    const LaneCoord lane = lane_coord();
    const int first = info.q_first + lane.row;
    using Factor = GradientFactor<C.options>;
    const float scale = Factor::of_scale(static_cast<float>(a.scale)), zeros = Factor::kOfZeros;
    const RowStore<E, kDqTiles, Factor::kMayBeZero> rows{
        dq,
        {first < info.len_q ? scale : zeros, first + 8 < info.len_q ? scale : zeros},
        {first < info.rows_end, first + 8 < info.rows_end},
        lane.column / 2,
        a.dim_qk};
    rows.to_global(p.backward.dq, offset_of(p.backward.dq, info.b, info.h, int64{info.q_begin} + first));
  }
  // Stores zeros for rows without visible keys.
  __device__ __forceinline__ void store_empty_rows(const TileInfo& info) const {
    const LaneCoord lane = lane_coord();
    for (int i = info.q_first + lane.row; i < min(info.q_first + lane.row + 16, info.rows_end); i += 8)
      zero_row<E>(p.backward.dq, offset_of(p.backward.dq, info.b, info.h, int64{info.q_begin} + i), lane.column / 2,
                  a.dim_qk);
  }

  __device__ __forceinline__ void run() {
    if (group == C.warpgroups - 1) Turn::pass(group);  // the first warpgroup starts
#pragma unroll 1
    for (; scheduler.has_tile(p.tile_order); scheduler.advance()) {
      wait_queries();
      converge();
      const TileInfo& info = pipeline.info(group, scheduler.round);
      if (uniform(info.rows_end == 0)) {
        release_queries();
      } else if (uniform(info.warpgroup_begin == info.warpgroup_end)) {
        release_queries();
        skip(uniform(info.end - info.begin));
        store_empty_rows(info);
      } else {
        DqAccumulator dq = {};
        fence_operands(dq);
        skip(uniform(info.end - info.warpgroup_end));
        mainloop(dq, info);
        release_queries();
        skip(uniform(info.warpgroup_begin - info.begin));
        store(info, dq);
      }
      converge();
    }
  }
};

}  // namespace cuflash
