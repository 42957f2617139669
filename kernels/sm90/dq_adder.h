// The warpgroup for dQ of a backward kernel with a loader: it multiplies the consumers' dS by K and adds the product to
// dq_accum in global memory.
#pragma once

#include "ptx/warpgroup.h"
#include "sm90/backward_pipeline.h"
#include "sm90/fence_operands.h"
#include "sm90/lane_coord.h"
#include "sm90/ring.h"
#include "tile/finite.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct DqAdder {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kShared = shared_config(C);
  static constexpr int kTileK = tile_k_of(C), kSteps = kTileK / 16, kColumns = kPanelColumns;
  using Pipeline = BackwardPipeline<C>;
  using DsTile = typename Pipeline::DsTile;
  using KTile = typename Pipeline::KTile;
  using Panel = SwizzledTile<kTileK, kColumns>;  // columns of K
  using Product = WarpgroupProduct<E, kColumns, true>;
  using Sums = Accumulator<float>[kColumns / 8];

  const Sm90BackwardParams& p;
  Pipeline pipeline;
  PhaseRing<kTaskSlots> keys;
  // Of the task, in registers because reads of shared memory queue behind those of wgmma.
  VisitedTiles tiles;
  int steps, count;  // of one head, of all heads
  int64 tiles_before, tiles_of_head;

  __device__ DqAdder(const Sm90BackwardParams& p, const Pipeline& pipeline) : p(p), pipeline(pipeline) {}

  __device__ static int thread() { return new_thread_id() % kWarpgroupThreads; }

  __device__ __forceinline__ void read_task() {
    const KeyTask& coord = pipeline.task(keys.slot());
    const VisitedTiles& visited = coord.visited;
    tiles = {uniform(visited.begin), uniform(visited.full_begin), uniform(visited.full_end), uniform(visited.end),
             uniform(visited.num_masked)};
    steps = tiles.count(), count = uniform(coord.group) * steps;
    tiles_before = coord.tiles_before, tiles_of_head = coord.tiles_of_head;
  }

  // Whether K has non-finite elements and some query must not see all keys.
  __device__ __forceinline__ bool selects() const {
    if (tiles.num_masked == 0) return false;
    const auto* pieces = static_cast<const uint4*>(__cvta_shared_to_generic(pipeline.k().address));
    bool found = false;
#pragma unroll 4
    for (int n = thread(); n < KTile::kBytes / 16; n += kWarpgroupThreads) found |= has_not_finite<E>(pieces[n]);
    return uniform(named_barrier_any(Pipeline::kDqBarrier, kWarpgroupThreads, found));
  }

  static __device__ __forceinline__ void multiply(Sums& dq, DsTile ds, Panel k) {
    wgmma_fence();
    Product::start(dq, ds.along_rows(0), k.across_rows(0));
#pragma unroll
    for (int step = 1; step < kSteps; ++step) Product::add(dq, ds.along_rows(step), k.across_rows(step));
    wgmma_commit();
    wgmma_wait<0>();
    fence_operands(dq);
  }
  // The same without the terms whose dS is 0: a query that sees a non-finite element has a NaN in its dS.
  static __device__ __forceinline__ void multiply_selected(Sums& dq, DsTile ds, Panel k) {
    const LaneCoord lane = lane_coord_in_warpgroup();
    const auto element = [](unsigned address) {
      return widen<E>(*static_cast<const unsigned short*>(__cvta_shared_to_generic(address)));
    };
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) dq[n] = {};
#pragma unroll 1
    for (int key = 0; key < kTileK; ++key) {
      const unsigned at = key % 8 * 2;
      const float d[2] = {element(ds.piece(lane.row, key) + at), element(ds.piece(lane.row + 8, key) + at)};
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float value = element(k.piece(key, 8 * n) + (lane.column + x % 2) * 2);
          if (d[x / 2] != 0) dq[n].x[x] += d[x / 2] * value;
        }
    }
  }
  // One branch around all additions: ptxas would turn every predicate into a branch of its own.
  __device__ __forceinline__ void add(const Sums& dq, int64 tile, int column) const {
    const int lane = new_thread_id() % 32, row = thread() / 32 * 16;
    if (row >= p.backward.dq_rows) return;
    float* to = dq_accum<kShared>(p.backward, tile) + accum_block<kShared>(row, column);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      if (C.dim_qk % kColumns == 0 || column + 8 * n < C.dim_qk) add_block(to + n * 128, lane, dq[n], true);
  }

  __device__ __forceinline__ static void release_ds(int buffer) {
#pragma unroll
    for (int group = 0; group < C.warpgroups; ++group)
      named_barrier_arrive(Pipeline::ds_read(group, buffer), Pipeline::kPair);
  }

  __device__ __forceinline__ void visit(int64 tile, int iteration, bool select) const {
    const int buffer = uniform(iteration % kDsStages);
#pragma unroll
    for (int group = 0; group < C.warpgroups; ++group)
      named_barrier_sync(Pipeline::ds_written(group, buffer), Pipeline::kPair);
#pragma unroll 1
    for (int column = 0; column < C.dim_qk; column += kColumns) {
      Sums dq;
      const Panel k{pipeline.k().address + column / kPanelColumns * KTile::kPanelBytes};
      if (select) multiply_selected(dq, pipeline.ds_tile(buffer), k);
      else multiply(dq, pipeline.ds_tile(buffer), k);
      // The consumers wait for this before they overwrite the dS buffer. The last two buffers are not reused.
      if (column + kColumns >= C.dim_qk && iteration + kDsStages < count) release_ds(buffer);
      add(dq, tile, column);
    }
  }

  __device__ __forceinline__ void mainloop() {
    const bool select = selects();
    int member = 0, step = 0;
    // All dS buffers start out free.
#pragma unroll 1
    for (int buffer = 0; buffer < min(kDsStages, count); ++buffer) release_ds(buffer);
#pragma unroll 1
    for (int iteration = 0; iteration < count; ++iteration) {
      converge();
      visit(tiles_before + member * tiles_of_head + tiles.tile(step), iteration, select);
      if (++step == steps) step = 0, ++member;
    }
  }

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;; keys.advance()) {
      mbarrier_wait(pipeline.k_full(), keys.phase());
      converge();
      if (uniform(pipeline.task(keys.slot()).written) < 0) break;
      read_task();
      if (count > 0) mainloop();
      __syncwarp();
      if (new_thread_id() % 32 == 0) mbarrier_arrive(pipeline.k_empty());
      converge();
    }
  }
};

}  // namespace cuflash
