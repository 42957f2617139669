// Producer warpgroup of the dQ kernel: one warp issues the TMA loads of K and V, one those of Q, dO and row statistics,
// one counts tiles.
#pragma once

#include "sm90/backward/options.h"
#include "sm90/dq/pipeline.h"
#include "sm90/tma_load.h"
#include "sm90/visited_work.h"

namespace cuflash {

// Loads a tile of K, and bias and mask for the queries of every consumer warpgroup.
template <Sm90DqConfig C>
__device__ __forceinline__ void load_keys_and_masks(const Sm90BackwardParams& p, const DqPipeline<C>& pipeline,
                                                    const VisitedWork<C>& work, int stage, int number) {
  const AttentionParams& a = p.backward.attention;
  const unsigned full = pipeline.k_full(stage);
  const int key = work.key_tile(number) * C.tile_k;
  unsigned bytes = DqPipeline<C>::KTile::kBytes;
  if constexpr ((C.options & kBias) != 0) bytes += C.warpgroups * box_bytes(a.bias, bias_tile_bytes(C));
  if constexpr (reads_mask(C)) {
    const ListedMaskTile listed = work.listed(number);
#pragma unroll
    for (int group = 0; group < C.warpgroups; ++group)
      if (!listed.shows_all(group)) bytes += a.summary.rows > 1 ? kMaskBitsBytes : kMaskBoxBytes;
    pipeline.listed_tile(stage) = listed;
  }
  mbarrier_arrive_expect_tx(full, bytes);
  tma_load_panels(pipeline.k(stage), p.dq_k, a.k, full, static_cast<int>(work.sequence.k_begin) + key, work.head_k(a),
                  work.b);
#pragma unroll
  for (int group = 0; group < C.warpgroups; ++group) {
    const int first = work.q_first + group * kWarpgroupRows;
    if constexpr ((C.options & kBias) != 0)
      tma_load_bias(pipeline.bias(stage, group), p.bias, a.bias, full, key, first, work.h, work.b);
    if constexpr (reads_mask(C))
      if (!work.listed(number).shows_all(group))
        tma_load_mask(pipeline.mask_box(stage, group), p.mask, a.summary, full, key, first, work.h, work.b);
  }
}

// Called by one thread. It loads K of a tile before its V, as the consumers use them.
template <Sm90DqConfig C>
__device__ __forceinline__ void load_keys_and_values(const Sm90BackwardParams& p, const DqPipeline<C>& pipeline) {
  const AttentionParams& a = p.backward.attention;
  Ring<C.key_stages> keys;
  Ring<C.value_stages> values;
  prefetch(p.dq_k), prefetch(p.dq_v);
#pragma unroll 1
  for (TileScheduler scheduler; scheduler.has_tile(p.tile_order); scheduler.advance()) {
    const VisitedWork<C> work(a, p.dq_mask_lists, scheduler.tile(p.tile_order));
    if (!work.exists) continue;
    const int head = work.head_k(a), first = static_cast<int>(work.sequence.k_begin);
#pragma unroll 1
    for (int tile = work.end - 1; tile >= work.begin && work.end != 0; --tile) {
      const int row = first + work.key_tile(tile) * C.tile_k;
      mbarrier_wait(pipeline.k_empty(keys.stage), keys.phase ^ 1);
      if constexpr ((C.options & (kBias | kMaskTensor)) != 0)
        load_keys_and_masks<C>(p, pipeline, work, keys.stage, tile);
      else tma_load_tile(pipeline.k(keys.stage), p.dq_k, a.k, pipeline.k_full(keys.stage), row, head, work.b);
      keys.advance();
      mbarrier_wait(pipeline.v_empty(values.stage), values.phase ^ 1);
      tma_load_tile(pipeline.v(values.stage), p.dq_v, a.v, pipeline.v_full(values.stage), row, head, work.b);
      values.advance();
    }
  }
}

// Writes what the options of a head need, once per query tile.
template <Sm90DqConfig C>
__device__ __forceinline__ void write_step_info(StepInfo& info, const AttentionParams& a, int b, int h) {
  if constexpr ((C.options & kAlibi) != 0) info.slope = slope_log2(a, b, h);
  if constexpr ((C.options & kDropout) != 0) info.stream = stream_of(a, b, h);
}

// Called by one lane per consumer warpgroup. Rows beyond a length are loaded as they are, since a row of dQ depends on
// its own query alone. Nothing is loaded for a warpgroup without visible keys, whose row statistics may not even exist,
// but the barrier phases advance with every round.
template <Sm90DqConfig C>
__device__ __forceinline__ void load_queries(const Sm90BackwardParams& p, const DqPipeline<C>& pipeline) {
  constexpr BackwardConfig kPortable = portable_view(C);
  const AttentionParams& a = p.backward.attention;
  prefetch(p.q), prefetch(p.dout);
#pragma unroll 1
  for (TileScheduler scheduler; scheduler.has_tile(p.tile_order); scheduler.advance()) {
    const int group = new_thread_id() % 32;  // read here, so that nothing derived from it stays in registers
    TileInfo& info = pipeline.info(group, scheduler.round);
    write_tile_info<C>(info, a, VisitedWork<C>(a, p.dq_mask_lists, scheduler.tile(p.tile_order)), group);
    if constexpr (reads_mask(C)) info.full_begin = info.warpgroup_begin;
    if constexpr (BackwardOptions<C.element, C.options>::kMayMaskAnyPair) info.full_end = info.full_begin;
    mbarrier_wait(pipeline.q_empty(group, scheduler.round), pipeline.query_phase(scheduler.round) ^ 1);
    const unsigned full = pipeline.q_full(group, scheduler.round);
    if (info.rows_end == 0 || info.warpgroup_begin == info.warpgroup_end) {
      mbarrier_arrive(full);
      continue;
    }
    const auto q = pipeline.q(group, scheduler.round);
    const auto dout = pipeline.dout(group, scheduler.round);
    const int row = info.q_begin + info.q_first;
    if constexpr (C.options != 0) write_step_info<C>(pipeline.step_info(group, scheduler.round), a, info.b, info.h);
    mbarrier_arrive_expect_tx(full, q.kBytes + dout.kBytes + pipeline.kStatsBytes);
    tma_load_panels(q, p.q, a.q, full, row, info.h, info.b);
    tma_load_panels(dout, p.dout, p.backward.dout, full, row, info.h, info.b);
    const int64 tile =
        query_tile<kPortable>(p.backward, info.sequence(), info.b, info.h, info.q_first / kWarpgroupRows);
    tma_load_row_stats(pipeline.stats_address(group, scheduler.round), p.row_stats, full, tile);
  }
}

// Called by one thread: counts tiles of 64 queries for the statistics, if no other kernel counts them.
template <Sm90DqConfig C>
__device__ __forceinline__ void count_visited_tiles(const Sm90BackwardParams& p) {
  const AttentionParams& a = p.backward.attention;
  if (!a.tile_counts || !p.counts_in_dq) return;
#pragma unroll 1
  for (TileScheduler scheduler; scheduler.has_tile(p.tile_order); scheduler.advance()) {
    const WorkTile<C> work(a, scheduler.tile(p.tile_order));
    if (!work.exists) continue;
#pragma unroll 1
    for (int group = 0; group < C.warpgroups; ++group) {
      const Range queries = work.queries(work.q_first + group * kWarpgroupRows, kWarpgroupRows);
      count_tiles<C.tile_k>(a, work.sequence, queries, visited_key_tiles<C.tile_k>(a, work.sequence, queries));
    }
  }
}

}  // namespace cuflash
