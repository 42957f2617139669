// Producer of the dBias kernel: one thread takes tiles of the bias by ticket, finds the query tiles of all batch entries
// and heads that share a tile and see its keys, and issues their TMA loads.
#pragma once

#include "attn/visited_tiles.h"
#include "ptx/compiler.h"
#include "sm90/dbias_pipeline.h"
#include "sm90/tma_load.h"

namespace cuflash {

template <Sm90DbiasConfig C>
struct DbiasProducer {
  using Pipeline = DbiasPipeline<C>;

  const Sm90BackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  Ring<C.stages> stages;
  Ring<kDbiasSteps> steps;
  unsigned bias_phase = 0;  // of the tile to load
  DbiasTile tile;

  __device__ DbiasProducer(const Sm90BackwardParams& p, const Pipeline& pipeline)
      : p(p), a(p.backward.attention), pipeline(pipeline) {}

  __device__ bool one_row() const { return p.backward.bias_len_q == 1; }

  // Rows of Q or dO, and K or V, into the next stage. Only existing rows of the second warpgroup are worth loading, but
  // what a stage holds otherwise does not matter: their pairs are hidden.
  template <int kDim>
  __device__ __forceinline__ void load(const TensorMap& rows_map, const RowsView& rows, const TensorMap& keys_map,
                                       const RowsView& keys, const TileInfo& info, int64 k_begin) {
    const int stage = stages.stage;
    const unsigned full = pipeline.full(stage);
    mbarrier_wait(pipeline.empty(stage), stages.phase ^ 1);
    mbarrier_arrive_expect_tx(full, kDbiasWarpgroups * Pipeline::template RowsOf<kDim>::kBytes +
                                        Pipeline::template KeysOf<kDim>::kBytes);
#pragma unroll
    for (int group = 0; group < kDbiasWarpgroups; ++group)
      tma_load_panels(pipeline.template rows<kDim>(stage, group), rows_map, rows, full,
                      info.q_begin + info.q_first + group * kWarpgroupRows, info.h, info.b);
    const auto to = pipeline.template keys<kDim>(stage);
    const int head = a.group == 1 ? info.h : info.h / a.group;
#pragma unroll
    for (int half = 0; half < Pipeline::kHalves; ++half)
#pragma unroll
      for (int panel = 0; panel < to.kPanels; ++panel)
        tma_load(to.address + panel * to.kPanelBytes + half * 64 * kPanelRowBytes, keys_map, full,
                 panel * kPanelColumns, static_cast<int>(k_begin) + tile.key + half * 64,
                 keys.head_stride != 0 ? head : 0, keys.batch_stride != 0 ? info.b : 0);
    stages.advance();
  }

  // Waits for a free step and writes its coordinates.
  __device__ __forceinline__ void write_step(DbiasStepKind kind, const Sequence& s, int b, int h, int q_first) {
    mbarrier_wait(pipeline.step_empty(steps.stage), steps.phase ^ 1);
#pragma unroll 1
    for (int group = 0; group < kDbiasWarpgroups; ++group) {
      DbiasStep& step = pipeline.step(steps.stage, group);
      TileInfo& info = step.info;
      step.kind = kind;
      info.b = b, info.h = h, info.q_first = q_first + group * kWarpgroupRows;
      info.q_begin = static_cast<int>(s.q_begin), info.shift = static_cast<int>(s.shift);
      info.len_q = s.len_q, info.len_k = s.len_k;
      info.begin = tile.key / 64;
      compiler_fence();  // reads the fields back, so that they occupy no registers
      const int64 first = info.q_first;
      const Range queries{first, min(first + kWarpgroupRows, int64{info.len_q})};
      const VisitedTiles visited = visited_key_tiles<64>(a, info.sequence(), queries);
      info.own_begin = visited.begin, info.own_end = visited.end;
      // Rows that do not exist must not add to what others share, whatever their scores are.
      const bool whole = queries.end - queries.begin == kWarpgroupRows;
      info.full_begin = visited.full_begin, info.full_end = whole ? visited.full_end : visited.full_begin;
    }
  }

  // Row statistics and mask of a visit.
  __device__ __forceinline__ void load_step() const {
    const int step = steps.stage;
    const unsigned full = pipeline.step_full(step);
    unsigned bytes = 0;
#pragma unroll 1
    for (int group = 0; group < kDbiasWarpgroups; ++group) {
      const TileInfo& info = pipeline.step(step, group).info;
      if (info.q_first < info.len_q) bytes += Pipeline::kStatsBytes;
    }
    if constexpr ((C.options & kMaskTensor) != 0) bytes += box_bytes(a.mask, mask_bytes(C));
    mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll 1
    for (int group = 0; group < kDbiasWarpgroups; ++group) {
      const TileInfo& info = pipeline.step(step, group).info;
      if (info.q_first < info.len_q)
        tma_load_row_stats(pipeline.stats_address(step, group), p.row_stats, full,
                           query_tile<Pipeline::kShared>(p.backward, info.sequence(), info.b, info.h,
                                                         info.q_first / kWarpgroupRows));
      if constexpr ((C.options & kMaskTensor) != 0)
#pragma unroll
        for (int half = 0; half < Pipeline::kHalves; ++half)
          tma_load_mask(pipeline.mask(step, group, half), p.mask, a.mask, full, tile.key + half * 64, info.q_first,
                        info.h, info.b);
    }
  }

  __device__ __forceinline__ void load_bias(const TileInfo& info) {
    const unsigned full = pipeline.bias_full();
    mbarrier_wait(pipeline.bias_empty(), bias_phase ^ 1);
    bias_phase ^= 1;
    mbarrier_arrive_expect_tx(full, box_bytes(a.bias, kDbiasWarpgroups * bias_tile_bytes(C)));
#pragma unroll
    for (int group = 0; group < kDbiasWarpgroups; ++group)
#pragma unroll
      for (int half = 0; half < Pipeline::kHalves; ++half)
        tma_load_bias(pipeline.bias(group, half), p.bias, a.bias, full, tile.key + half * 64,
                      info.q_first + group * kWarpgroupRows, info.h, info.b);
  }

  __device__ __forceinline__ void visit(const Sequence& s, int b, int h, int q_first, bool first) {
    write_step(first ? DbiasStepKind::new_tile : DbiasStepKind::visit, s, b, h, q_first);
    if constexpr ((C.options & (kAlibi | kDropout)) != 0)
#pragma unroll
      for (int group = 0; group < kDbiasWarpgroups; ++group) {
        StepInfo& info = pipeline.head_info(steps.stage, group);
        if constexpr ((C.options & kAlibi) != 0) info.slope = slope_log2(a, b, h);
        if constexpr ((C.options & kDropout) != 0) info.stream = stream_of(a, b, h);
      }
    load_step();
    const TileInfo& info = pipeline.step(steps.stage, 0).info;
    load<C.dim_qk>(p.q, a.q, p.dq_k, a.k, info, s.k_begin);
    if (first) {
      load_bias(info);
      pipeline.tile(bias_phase ^ 1) = tile;  // the consumers have stored the tile before the previous one
    }
    load<C.dim_v>(p.dout, p.backward.dout, p.dq_v, a.v, info, s.k_begin);
    steps.advance();
  }

  __device__ __forceinline__ void store(DbiasStepKind kind) {
    write_step(kind, {}, tile.b, tile.h, tile.row);
    mbarrier_arrive(pipeline.step_full(steps.stage));
    steps.advance();
  }

  // All query tiles that add to the current tile.
  __device__ __forceinline__ void visit_all() {
    const BackwardParams& w = p.backward;
    const int first_b = tile.b, first_h = tile.h;
    const int end_b = w.bias_batch == 1 ? a.batch : first_b + 1, end_h = w.bias_heads == 1 ? a.heads_q : first_h + 1;
    bool first = true;
#pragma unroll 1
    for (int b = first_b; b < end_b; ++b) {
      const Sequence s = sequence_of(a, b);
      const Range seen = queries_of_any(a, s, {tile.key, min(int64{tile.key} + C.tile_k, int64{s.len_k})});
      if (seen.empty()) continue;
      int begin = static_cast<int>(seen.begin) / kDbiasTileQ * kDbiasTileQ, end = static_cast<int>(seen.end);
      if (!one_row()) {
        if (tile.row < begin || tile.row >= end) continue;
        begin = tile.row, end = tile.row + 1;
      }
#pragma unroll 1
      for (int h = first_h; h < end_h; ++h)
#pragma unroll 1
        for (int q_first = begin; q_first < end; q_first += kDbiasTileQ, first = false) visit(s, b, h, q_first, first);
    }
    if (first) store(DbiasStepKind::zeros);
  }

  __device__ __forceinline__ void run() {
    const BackwardParams& w = p.backward;
    prefetch(p.q), prefetch(p.dq_k), prefetch(p.dout), prefetch(p.dq_v), prefetch(p.bias);
    uint64* const ticket = w.ticket + 1;
    const int64 tiles_k = tiles_in(a.len_k, C.tile_k), tiles_q = tiles_in(w.bias_len_q, kDbiasTileQ);
    const int64 count = tiles_k * tiles_q * w.bias_heads * w.bias_batch;
#pragma unroll 1
    for (int64 n; (n = static_cast<int64>(atomicAdd(ticket, 1ull))) < count;) {
      const int64 row = quotient(n, tiles_k), head = quotient(row, tiles_q), b = quotient(head, w.bias_heads);
      tile = {static_cast<int>(b), static_cast<int>(head - b * w.bias_heads),
              static_cast<int>(row - head * tiles_q) * kDbiasTileQ, static_cast<int>(n - row * tiles_k) * C.tile_k};
      visit_all();
    }
    store(DbiasStepKind::last_tile);
  }
};

}  // namespace cuflash
