// Producer of the dBias kernel: one thread takes tasks by ticket, finds the query tiles of all batch entries and heads
// that share a tile of the bias and see its keys, and issues their TMA loads.
#pragma once

#include "attn/visited_tiles.h"
#include "ptx/compiler.h"
#include "sm90/dbias/pipeline.h"
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
  unsigned bias_phase = 0;  // phase of the bias of the next task to visit
  DbiasTask& task;          // in shared memory, since registers are few

  __device__ DbiasProducer(const Sm90BackwardParams& p, const Pipeline& pipeline)
      : p(p), a(p.backward.attention), pipeline(pipeline), task(pipeline.task(2)) {}

  __device__ bool one_row() const { return p.backward.bias_len_q == 1; }

  // Loads rows of Q or dO, and K or V, into the next stage. Missing rows of the second warpgroup are not loaded; the
  // old contents of the stage do no harm, since their pairs are hidden.
  template <int kDim>
  __device__ __forceinline__ void load(const TensorMap& rows_map, const RowsView& rows, const TensorMap& keys_map,
                                       const RowsView& keys, const TileInfo& info, int64 k_begin) {
    const int stage = stages.stage;
    const unsigned full = pipeline.full(stage);
    mbarrier_wait(pipeline.empty(stage), stages.phase ^ 1);
    mbarrier_arrive_expect_tx(
        full, C.warpgroups * Pipeline::template RowsOf<kDim>::kBytes + Pipeline::template KeysOf<kDim>::kBytes);
#pragma unroll
    for (int group = 0; group < C.warpgroups; ++group)
      tma_load_panels(pipeline.template rows<kDim>(stage, group), rows_map, rows, full,
                      info.q_begin + info.q_first + group * kWarpgroupRows, info.h, info.b);
    const auto to = pipeline.template keys<kDim>(stage);
    const int head = a.group == 1 ? info.h : info.h / a.group;
#pragma unroll
    for (int half = 0; half < Pipeline::kHalves; ++half)
#pragma unroll
      for (int panel = 0; panel < to.kPanels; ++panel)
        tma_load(to.address + panel * to.kPanelBytes + half * 64 * kPanelRowBytes, keys_map, full,
                 panel * kPanelColumns, static_cast<int>(k_begin) + task.key + half * 64,
                 keys.head_stride != 0 ? head : 0, keys.batch_stride != 0 ? info.b : 0);
    stages.advance();
  }

  // Waits for a free step and writes its coordinates.
  __device__ __forceinline__ void write_step(DbiasStepKind kind, const Sequence& s, int b, int h, int q_first) {
    mbarrier_wait(pipeline.step_empty(steps.stage), steps.phase ^ 1);
#pragma unroll 1
    for (int group = 0; group < C.warpgroups; ++group) {
      DbiasStep& step = pipeline.step(steps.stage, group);
      TileInfo& info = step.info;
      step.kind = kind, step.number = task.number;
      info.b = b, info.h = h, info.q_first = q_first + group * kWarpgroupRows;
      info.q_begin = static_cast<int>(s.q_begin), info.shift = static_cast<int>(s.shift);
      info.len_q = s.len_q, info.len_k = s.len_k;
      info.begin = task.key / 64;
      compiler_fence();  // reads the fields back, so that they occupy no registers
      const int64 first = info.q_first;
      const Range queries{first, min(first + kWarpgroupRows, int64{info.len_q})};
      const VisitedTiles visited = visited_key_tiles<64>(a, info.sequence(), queries);
      info.warpgroup_begin = visited.begin, info.warpgroup_end = visited.end;
      // Missing rows must not add to sums that other rows share, whatever their scores are.
      const bool whole = queries.end - queries.begin == kWarpgroupRows;
      info.full_begin = visited.full_begin, info.full_end = whole ? visited.full_end : visited.full_begin;
    }
  }

  // Writes the coordinates of a visit that differs from the previous one in its batch entry and head alone. Finding out
  // what its queries see would take longer than the visit.
  __device__ __forceinline__ void write_similar_step(int b, int h) const {
    mbarrier_wait(pipeline.step_empty(steps.stage), steps.phase ^ 1);
#pragma unroll 1
    for (int group = 0; group < C.warpgroups; ++group) {
      DbiasStep& step = pipeline.step(steps.stage, group);
      step = pipeline.step((steps.stage + kDbiasSteps - 1) % kDbiasSteps, group);
      step.kind = DbiasStepKind::visit, step.info.b = b, step.info.h = h;
    }
  }

  // Loads row statistics and mask of a visit.
  __device__ __forceinline__ void load_step() const {
    const int step = steps.stage;
    const unsigned full = pipeline.step_full(step);
    unsigned bytes = 0;
#pragma unroll 1
    for (int group = 0; group < C.warpgroups; ++group) {
      const TileInfo& info = pipeline.step(step, group).info;
      if (info.q_first < info.len_q) bytes += Pipeline::kStatsBytes;
    }
    if constexpr ((C.options & kMaskTensor) != 0)
      bytes += C.warpgroups * (a.summary.rows > 1 ? kMaskBitsBytes : kMaskBoxBytes);
    mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll 1
    for (int group = 0; group < C.warpgroups; ++group) {
      const TileInfo& info = pipeline.step(step, group).info;
      if (info.q_first < info.len_q)
        tma_load_row_stats(pipeline.stats_address(step, group), p.row_stats, full,
                           query_tile<Pipeline::kPortable>(p.backward, info.sequence(), info.b, info.h,
                                                           info.q_first / kWarpgroupRows));
      if constexpr ((C.options & kMaskTensor) != 0)
        tma_load_mask(pipeline.mask_box(step, group), p.mask, a.summary, full, task.key, info.q_first, info.h, info.b);
    }
  }

  __device__ __forceinline__ void load_bias(const TileInfo& info) {
    const unsigned full = pipeline.bias_full();
    mbarrier_wait(pipeline.bias_empty(), bias_phase ^ 1);
    bias_phase ^= 1;
    mbarrier_arrive_expect_tx(full, box_bytes(a.bias, C.warpgroups * bias_tile_bytes(C)));
#pragma unroll
    for (int group = 0; group < C.warpgroups; ++group)
#pragma unroll
      for (int half = 0; half < Pipeline::kHalves; ++half)
        tma_load_bias(pipeline.bias(group, half), p.bias, a.bias, full, task.key + half * 64,
                      info.q_first + group * kWarpgroupRows, info.h, info.b);
  }

  __device__ __forceinline__ void visit(int b, int h, int q_first, bool first) {
    compiler_fence();
    const Sequence s = sequence_of(a, b);  // again, so that it does not occupy registers of the loop
    if (!first && !one_row() && sequences_are_equal(a)) write_similar_step(b, h);
    else write_step(first ? DbiasStepKind::new_task : DbiasStepKind::visit, s, b, h, q_first);
    if constexpr ((C.options & (kAlibi | kDropout)) != 0)
#pragma unroll
      for (int group = 0; group < C.warpgroups; ++group) {
        StepInfo& info = pipeline.head_info(steps.stage, group);
        if constexpr ((C.options & kAlibi) != 0) info.slope = slope_log2(a, b, h);
        if constexpr ((C.options & kDropout) != 0) info.stream = stream_of(a, b, h);
      }
    load_step();
    const TileInfo& info = pipeline.step(steps.stage, 0).info;
    load<C.dim_qk>(p.q, a.q, p.dq_k, a.k, info, s.k_begin);
    if (first) {
      load_bias(info);
      pipeline.task(bias_phase ^ 1) = task;  // the consumers have stored the task before the previous one
    }
    load<C.dim_v>(p.dout, p.backward.dout, p.dq_v, a.v, info, s.k_begin);
    steps.advance();
  }

  __device__ __forceinline__ void store(DbiasStepKind kind) {
    write_step(kind, {}, task.b, task.h, task.row);
    mbarrier_arrive(pipeline.step_full(steps.stage));
    steps.advance();
  }

  // Visits all query tiles that add to the task.
  __device__ __forceinline__ void visit_all() {
    const BackwardParams& w = p.backward;
    const int part = task.number % w.dbias_parts;
    const int heads = w.bias_heads == 1 ? a.heads_q : 1, shared = heads * (w.bias_batch == 1 ? a.batch : 1);
    task.end = static_cast<int>(quotient(int64{shared} * (part + 1), w.dbias_parts));
    bool first = true;
#pragma unroll 1
    for (int n = static_cast<int>(quotient(int64{shared} * part, w.dbias_parts)); n < task.end; ++n) {
      const int b = heads == 1 ? task.b + n : task.b + n / heads, h = heads == 1 ? task.h : task.h + n % heads;
      int q_first = task.row, q_end = task.row + 1;
      if (first || one_row() || !sequences_are_equal(a)) {
        const Sequence s = sequence_of(a, b);
        const Range seen = queries_of_any(a, s, {task.key, min(int64{task.key} + C.tile_k, int64{s.len_k})});
        if (seen.empty()) continue;
        const int seen_first = static_cast<int>(seen.begin) / tile_q_of(C) * tile_q_of(C);
        if (one_row()) q_first = seen_first, q_end = static_cast<int>(seen.end);
        else if (task.row < seen_first || task.row >= seen.end) continue;
      }
#pragma unroll 1
      for (; q_first < q_end; q_first += tile_q_of(C), first = false) visit(b, h, q_first, first);
    }
    if (first) store(DbiasStepKind::zeros);
  }

  __device__ __forceinline__ void run() {
    const BackwardParams& w = p.backward;
    prefetch(p.q), prefetch(p.dq_k), prefetch(p.dout), prefetch(p.dq_v), prefetch(p.bias);
    // The family rejects 2^31 tasks and more.
    const int tiles_k = static_cast<int>(tiles_in(a.len_k, C.tile_k)),
              tiles_q = static_cast<int>(tiles_in(w.bias_len_q, tile_q_of(C)));
    const int count = tiles_k * tiles_q * w.bias_heads * w.bias_batch * w.dbias_parts;
#pragma unroll 1
    for (int n; (n = static_cast<int>(atomicAdd(w.ticket + 1, 1ull))) < count;) {
      const int tile = n / w.dbias_parts, row = tile / tiles_k, head = row / tiles_q, b = head / w.bias_heads;
      task = {b, head - b * w.bias_heads, (row - head * tiles_q) * tile_q_of(C), (tile - row * tiles_k) * C.tile_k, n,
              0};
      visit_all();
    }
    store(DbiasStepKind::last_task);
  }
};

}  // namespace cuflash
