// A panel of columns of dQ of a query tile: multiplies the consumers' dS by K, adds the product to dq_accum in global
// memory or to sums that the CTA keeps, or stores it, and releases the dS buffer. The producer uses it, or a separate
// warpgroup for dQ.
#pragma once

#include "sm90/backward/pipeline.h"
#include "sm90/lane_coord.h"
#include "sm90/products.h"
#include "sm90/store.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct DqPanel {
  static constexpr BackwardConfig kPortable = portable_view(C);
  static constexpr int kTileK = tile_k_of(C), kColumns = dq_columns(C);
  using Pipeline = BackwardPipeline<C>;
  using DsTile = typename Pipeline::DsTile;
  using KPanel = SwizzledTile<kTileK, (kColumns > kPanelColumns ? kColumns : kPanelColumns)>;  // panel of K
  using Product = WarpgroupProduct<C.element, kColumns, true>;

  Accumulator<float> sums[kColumns / 8];

  // keys: shared address of the K tile.
  static __device__ __forceinline__ KPanel keys_of(unsigned keys, int column) {
    return {keys + column / kPanelColumns * (kTileK * kPanelRowBytes) + column % kPanelColumns * 2};
  }
  __device__ __forceinline__ void multiply(DsTile ds, KPanel k) {
    issue_wgmma_ss<Product, kTileK, true>(sums, ds, 0, k);
    wgmma_wait<0>();
    fence_operands(sums);
  }
  // The branch goes around all additions; otherwise ptxas would turn the predicate of each into a branch.
  __device__ __forceinline__ void add_to_accum(const BackwardParams& p, int64 tile, int first_column) const {
    const int lane = new_thread_id() % 32, row = new_thread_id() % kWarpgroupThreads / 32 * 16;
    if (row >= p.dq_rows) return;
    float* to = dq_accum<kPortable>(p, tile) + accum_block<kPortable>(row, first_column);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      if (C.dim_qk % kColumns == 0 || first_column + 8 * n < C.dim_qk) add_block(to + n * 128, lane, sums[n], true);
  }

  // Stores columns of dQ of a query tile, from its finished sums.
  __device__ __forceinline__ void store(const BackwardParams& p, int b, int head, int tile, int column) const {
    using Factor = GradientFactor<C.options>;
    const AttentionParams& a = p.attention;
    const LaneCoord lane = lane_coord_in_warpgroup();
    const float scale = Factor::of_scale(static_cast<float>(a.scale));
    const int row = tile * C.tile_q + lane.row;
    const RowStore<C.element, kColumns / 8, Factor::kMayBeZero> rows{
        sums, {scale, scale}, {row < a.len_q, row + 8 < a.len_q}, lane.column / 2, a.dim_qk - column};
    rows.to_global(p.dq, offset_of(p.dq, b, head, row) + column);
  }
  // The sums that this CTA keeps of a query tile of head `member` of its group; null for rows without sums.
  static __device__ __forceinline__ float* kept_block(const BackwardParams& p, int member, int tile, int column) {
    const AttentionParams& a = p.attention;
    const int64 tiles = (int64{cta_number()} * a.group + member) * tiles_in(a.len_q, C.tile_q) + tile;
    const int row = new_thread_id() % kWarpgroupThreads / 32 * 16;
    float* sums = p.kept_dq + tiles * (p.dq_rows * C.dim_qk) + accum_block<kPortable>(row, column);
    return row < p.dq_rows ? sums : nullptr;
  }
  __device__ __forceinline__ void load_kept(const float* kept) {
    const int lane = new_thread_id() % 32;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) sums[n] = {};
    if (!kept) return;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) sums[n] = load_block(kept + n * 128, lane);
  }
  __device__ __forceinline__ void store_kept(float* kept) const {
    const int lane = new_thread_id() % 32;
    if (!kept) return;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) store_block(kept + n * 128, lane, sums[n]);
  }
  __device__ __forceinline__ void multiply_add(DsTile ds, KPanel k) {
    issue_wgmma_ss_add<Product, kTileK>(sums, ds, k);
    wgmma_wait<0>();
    fence_operands(sums);
  }

  static __device__ __forceinline__ void wait_for_ds(int buffer) {
    named_barrier_sync(Pipeline::ds_written(buffer), Pipeline::kDsThreads);
  }
  static __device__ __forceinline__ void release_ds(int buffer) {
#pragma unroll
    for (int group = 0; group < C.warpgroups; ++group)
      named_barrier_arrive(Pipeline::ds_read(group, buffer), Pipeline::kPair);
  }
  // All dS buffers start out free.
  static __device__ __forceinline__ void release_all_ds(int count) {
#pragma unroll 1
    for (int buffer = 0; buffer < min(kDsStages, count); ++buffer) release_ds(buffer);
  }

  // Computes all columns of the query tile of iteration `iteration` of `count`. compute(panel, dS, K) computes one
  // panel, write(panel, first column) adds it to the sums or stores it.
  template <class Compute, class Write>
  static __device__ __forceinline__ void for_all(const Pipeline& pipeline, int iteration, int count, unsigned keys,
                                                 Compute compute, Write write) {
    const int buffer = uniform(iteration % kDsStages);
    wait_for_ds(buffer);
#pragma unroll 1
    for (int column = 0; column < C.dim_qk; column += kColumns) {
      DqPanel dq;
      compute(dq, pipeline.ds_tile(buffer), keys_of(keys, column));
      // The consumers wait for this before they overwrite the dS buffer. The last two buffers are not reused.
      if (column + kColumns >= C.dim_qk && iteration + kDsStages < count) release_ds(buffer);
      write(dq, column);
    }
  }
  // The same with kKeepsDq, for query tile `tile` of head `member`. begins: no earlier key tile has sums of it; sums are
  // loaded before dS is ready. multiply_add(panel, dS, K) adds the product, finish(panel, first column) stores dQ.
  template <class MultiplyAdd, class Finish>
  static __device__ __forceinline__ void for_all_kept(const BackwardParams& p, const Pipeline& pipeline, int iteration,
                                                      int count, unsigned keys, int member, int tile, bool begins,
                                                      bool ends, MultiplyAdd multiply_add, Finish finish) {
    const int buffer = uniform(iteration % kDsStages);
#pragma unroll 1
    for (int column = 0; column < C.dim_qk; column += kColumns) {
      DqPanel dq;
      dq.load_kept(begins ? nullptr : kept_block(p, member, tile, column));
      if (column == 0) wait_for_ds(buffer);
      multiply_add(dq, pipeline.ds_tile(buffer), keys_of(keys, column));
      if (column + kColumns >= C.dim_qk && iteration + kDsStages < count) release_ds(buffer);
      if (ends) finish(dq, column);
      else dq.store_kept(kept_block(p, member, tile, column));
    }
  }
};

}  // namespace cuflash
