// Consumer warpgroup of the dBias kernel: S and dP of 64 queries and a tile of keys for one (batch, head) after the
// other, and the sums of dS in registers.
//
//   issue S | issue dP | wait S | P from S | wait dP | sums += P (dP - delta)
#pragma once

#include "sm90/consumer_sync.h"
#include "sm90/dbias/pipeline.h"
#include "sm90/dq/scores.h"
#include "sm90/products.h"
#include "sm90/store.h"

namespace cuflash {

template <Sm90DbiasConfig C>
struct DbiasConsumer {
  static constexpr Element E = C.element;
  using Pipeline = DbiasPipeline<C>;
  using Scores = DqScores<score_config(C), true>;
  using Options = typename Scores::Options;
  static constexpr int kKeyTiles = C.tile_k / 8, kHalves = Pipeline::kHalves;
  using Sums = Accumulator<float>[kKeyTiles];
  using Half = Accumulator<float>[8];  // accumulators of 64 keys
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;

  const Sm90BackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  int group;
  Ring<C.stages> stages;
  Ring<kDbiasSteps> steps;
  unsigned bias_phase = 0;  // phase of the bias of the next task
  bool pending = false;     // the sums belong to a task that has not been stored

  __device__ DbiasConsumer(const Sm90BackwardParams& p, const Pipeline& pipeline, int group)
      : p(p), a(p.backward.attention), pipeline(pipeline), group(group) {}

  static __device__ __forceinline__ Half& half_of(Sums& x, int half) { return *reinterpret_cast<Half*>(x + half * 8); }
  __device__ const DbiasStep& step() const { return pipeline.step(steps.stage, group); }
  __device__ const float* stats() const { return pipeline.stats(steps.stage, group); }

  __device__ __forceinline__ unsigned lane_bias(int half) const {
    const int thread = new_thread_id(), row = thread / 32 % 4 * 16 + thread % 16;
    return pipeline.bias(group, half).piece(a.bias.row_stride != 0 ? row : 0, thread % 32 / 16 * 8);
  }
  __device__ __forceinline__ unsigned tensor_mask(int half) const {
    if constexpr (!Options::kHasMask) return ~0u;
    return pipeline.mask(steps.stage, group, (step().info.begin + half) * 64, a.summary.rows > 1)
        .pairs_of_queries(new_thread_id());
  }
  // Bit mask of the pairs whose row exists.
  __device__ __forceinline__ unsigned existing_rows(const TileInfo& info) const {
    const int first = info.q_first + Scores::lane_coord().row;
    return (first < info.len_q ? 0xffffu : 0) | (first + 8 < info.len_q ? 0xffff0000u : 0);
  }

  // Issues the product of a stage, S or dP.
  template <int kDim>
  __device__ __forceinline__ void issue(Sums& s) const {
    mbarrier_wait(pipeline.full(stages.stage), stages.phase);
    issue_wgmma_ss<ScoreProduct, kDim>(s, rematerialize(pipeline.template rows<kDim>(stages.stage, group)), 0,
                                       pipeline.template keys<kDim>(stages.stage));
  }

  // Replaces scores of 64 keys by P, or by the factors of dS.
  __device__ __forceinline__ void exponentiate(Half& s, const typename Scores::Rows& rows, int half) const {
    const TileInfo& info = step().info;
    const int tile = info.begin + half;
    const StepInfo& head = pipeline.head_info(steps.stage, group);
    Scores::template exponentiate_pairs<false>(s, p, info, head, tile, rows, lane_bias(half), ~0u);
    if (Options::kHasMask || !uniform(info.full_begin <= tile && tile < info.full_end))
      Scores::hide(s, tensor_mask(half) & existing_rows(info) & Scores::visible_pairs(a, info, tile));
  }
  // exponentiate() for rows whose LSE may be large.
  __device__ __forceinline__ void exponentiate_guarded(Half& s, int half) const {
    const TileInfo& info = step().info;
    Scores::exponentiate_pairs_guarded(s, p, info, pipeline.head_info(steps.stage, group), info.begin + half, stats(),
                                       lane_bias(half), tensor_mask(half) & existing_rows(info));
  }
  // A probability of exactly 0, hidden or underflowed, adds nothing whatever dP is.
  __device__ __forceinline__ void add_gradients(Sums& sums, Sums& probs, Sums& dp, const float (&delta)[2]) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float prob = probs[n].x[x];
        sums[n].x[x] += prob == 0 ? 0.0f : Options::gradient(prob, dp[n].x[x], delta[x / 2], p.factors.keep);
      }
  }

  __device__ __forceinline__ void visit(Sums& sums, bool new_task) {
    Sums s, dp;
    const int first = stages.stage;
    issue<C.dim_qk>(s);
    stages.advance();
    issue<C.dim_v>(dp);
    const typename Scores::Rows rows(stats());
    wgmma_wait<1>();
    fence_operands(s);
    release_stage(pipeline.empty(first));
    if (new_task) wait_for_bias();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) exponentiate(half_of(s, half), rows, half);
    fence_operands(s);
    wgmma_wait<0>();
    fence_operands(dp);
    release_stage(pipeline.empty(stages.stage));
    stages.advance();
    add_gradients(sums, s, dp, rows.delta);
  }
  // Processes one step without overlapping wgmma and math.
  __device__ __forceinline__ void visit_guarded(Sums& sums, bool new_task) {
    Sums s, dp;
    issue<C.dim_qk>(s);
    wgmma_wait<0>();
    fence_operands(s);
    release_stage(pipeline.empty(stages.stage));
    stages.advance();
    if (new_task) wait_for_bias();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) exponentiate_guarded(half_of(s, half), half);
    fence_operands(s);
    issue<C.dim_v>(dp);
    wgmma_wait<0>();
    fence_operands(dp);
    release_stage(pipeline.empty(stages.stage));
    stages.advance();
    add_gradients(sums, s, dp, typename Scores::Rows(stats()).delta);
  }
  __device__ __forceinline__ void wait_for_bias() { mbarrier_wait(pipeline.bias_full(), bias_phase ^ 1); }

  __device__ __forceinline__ void store_rows(const Sums& sums, const DbiasTask& task, bool zeros) const {
    const BackwardParams& w = p.backward;
    const int lane_row = task.row + group * kWarpgroupRows + Scores::lane_coord().row;
    const float factor = zeros ? 0.0f : 1.0f;
    const RowStore<E, kKeyTiles> rows{sums,
                                      {factor, factor},
                                      {lane_row < w.bias_len_q, lane_row + 8 < w.bias_len_q},
                                      Scores::lane_coord().column / 2,
                                      a.len_k - task.key};
    rows.to_global(w.dbias, offset_of(w.dbias, task.b, task.h, lane_row) + task.key);
  }
  static constexpr int kThreads = C.warpgroups * kWarpgroupThreads, kWarps = kThreads / 32;
  static constexpr int kTaskSums = tile_q_of(C) * C.tile_k;  // floats in the workspace

  static __device__ __forceinline__ int consumer_thread() { return new_thread_id() - kWarpgroupThreads; }

  // Sums each column over the rows of the warp, and stores one row of sums per warp.
  static __device__ __forceinline__ void store_sums_of_warp(float* rows, const Sums& sums, bool zeros) {
    const int thread = consumer_thread(), lane = thread % 32;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float x = zeros ? 0.0f : sums[n].x[e] + sums[n].x[2 + e];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
        if (lane < 4) rows[thread / 32 * C.tile_k + n * 8 + lane * 2 + e] = x;
      }
  }
  // Adds up the rows of all warps of `tasks` tasks, one key per thread, and stores dBias.
  __device__ __forceinline__ void store_sum_of_warps(const float* rows, int tasks, const DbiasTask& task) const {
    const BackwardParams& w = p.backward;
    const int key = consumer_thread();
    if (key >= C.tile_k || task.key + key >= a.len_k) return;
    float x = 0;
#pragma unroll 1
    for (int n = 0; n < tasks; ++n)
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) x += rows[n * kTaskSums + warp * C.tile_k + key];
    store_element<E>(w.dbias.data, w.dbias.element, offset_of(w.dbias, task.b, task.h, 0) + task.key + key, x);
  }
  // Stores dBias if all queries share one row, summed over lanes, warps and warpgroups in a fixed order. The bias is no
  // longer needed, so its memory holds one row per warp.
  __device__ __forceinline__ void store_sum_of_rows(const Sums& sums, const DbiasTask& task, bool zeros) const {
    auto* rows = static_cast<float*>(__cvta_shared_to_generic(pipeline.bias(0, 0).address));
    if (!zeros) {
      named_barrier_sync(Pipeline::kConsumerBarrier, kThreads);
      store_sums_of_warp(rows, sums, false);
      named_barrier_sync(Pipeline::kConsumerBarrier, kThreads);
    }
    store_sum_of_warps(rows, zeros ? 0 : 1, task);
    if (!zeros) async_proxy_fence();  // TMA writes the next bias
  }

  // Announces the sums that this task has written to the workspace. Returns whether the sums of all parts of the tile
  // are complete.
  __device__ __forceinline__ bool is_last_part(int tile) const {
    __threadfence();
    named_barrier_sync(Pipeline::kConsumerBarrier, kThreads);
    bool last = false;
    if (consumer_thread() == 0) {
      last = static_cast<int>(atomicAdd(p.backward.ticket + 2 + tile, 1ull)) == p.backward.dbias_parts - 1;
      __threadfence();
    }
    return named_barrier_any(Pipeline::kConsumerBarrier, kThreads, last);
  }
  // Adds up the sums of all parts of a tile, in order. The loads of several parts are in flight together: one after the
  // other, they would take longer than computing the parts.
  __device__ __forceinline__ void add_parts(Sums& sums, const float* part) const {
    constexpr int kTogether = 128 / (4 * kKeyTiles);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) sums[n] = {};
#pragma unroll 1
    for (int left = p.backward.dbias_parts; left > 0; left -= kTogether, part += kTogether * kTaskSums) {
      float x[kTogether][kKeyTiles][4] = {};
#pragma unroll
      for (int m = 0; m < kTogether; ++m)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
          if (m < left) load_from_l2(part + m * kTaskSums + n * kThreads * 4, x[m][n]);
#pragma unroll
      for (int m = 0; m < kTogether; ++m)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[n].x[e] += x[m][n][e];
    }
  }
  // Stores dBias if several tasks share a tile. Each task stores its sums in the workspace, and the last one adds them
  // up in order.
  __device__ __forceinline__ void store_part(Sums& sums, const DbiasTask& task, bool zeros) const {
    const BackwardParams& w = p.backward;
    const int tile = task.number / w.dbias_parts;
    float* mine = w.dbias_sums + int64{task.number} * kTaskSums;
    const float* first = w.dbias_sums + int64{tile} * w.dbias_parts * kTaskSums;
    if (w.bias_len_q == 1) {
      store_sums_of_warp(mine, sums, zeros);
      if (is_last_part(tile)) store_sum_of_warps(first, w.dbias_parts, task);
      return;
    }
    const int lane_offset = consumer_thread() * 4;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      if (zeros) sums[n] = {};
      store_to_global(mine + n * kThreads * 4 + lane_offset, sums[n].x);
    }
    if (!is_last_part(tile)) return;
    add_parts(sums, first + lane_offset);
    store_rows(sums, task, false);
  }
  __device__ __forceinline__ void store(Sums& sums, const DbiasTask& task, bool zeros) const {
    if (p.backward.dbias_parts > 1) store_part(sums, task, zeros);
    else if (p.backward.bias_len_q == 1) store_sum_of_rows(sums, task, zeros);
    else store_rows(sums, task, zeros);
  }
  // Stores the sums of the previous task, if there is one.
  __device__ __forceinline__ void store_pending(Sums& sums) {
    if (!pending) return;
    pending = false;
    store(sums, pipeline.task(bias_phase ^ 1), false);
    __syncwarp();
    release_stage(pipeline.bias_empty());
  }

  __device__ __forceinline__ void run() {
    Sums sums = {};
#pragma unroll 1
    for (;;) {
      mbarrier_wait(pipeline.step_full(steps.stage), steps.phase);
      converge();
      const auto kind = static_cast<DbiasStepKind>(uniform(static_cast<int>(step().kind)));
      const bool new_task = kind == DbiasStepKind::new_task;
      if (kind != DbiasStepKind::visit) store_pending(sums);
      if (kind == DbiasStepKind::last_task) break;
      if (kind == DbiasStepKind::zeros) {
        const DbiasStep& of = step();
        const TileInfo& info = of.info;
        store(sums, {info.b, info.h, info.q_first - group * kWarpgroupRows, info.begin * 64, of.number, 0}, true);
      } else {
        if (new_task) {
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n) sums[n] = {};
          pending = true, bias_phase ^= 1;
        }
        if (uniform(has_large_rows<Pipeline::kPortable>(stats()))) visit_guarded(sums, new_task);
        else visit(sums, new_task);
      }
      __syncwarp();  // all lanes have read the step
      release_stage(pipeline.step_empty(steps.stage));
      steps.advance();
      converge();
    }
  }
};

}  // namespace cuflash
