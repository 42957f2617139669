// The warpgroup for dQ in a backward kernel with a loader: it multiplies the consumers' dS by K and adds the product to
// dq_accum in global memory.
#pragma once

#include "ptx/warpgroup.h"
#include "sm90/backward/dq_panel.h"
#include "sm90/consumer_sync.h"
#include "sm90/lane_coord.h"
#include "sm90/ring.h"
#include "tile/finite.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct DqAdder {
  static constexpr Element E = C.element;
  using Panel = DqPanel<C>;
  using Pipeline = BackwardPipeline<C>;
  using KTile = typename Pipeline::KTile;

  const Sm90BackwardParams& p;
  Pipeline pipeline;
  PhaseRing<kTaskSlots> keys;
  // Fields of the task. They are kept in registers because reads of shared memory queue behind those of wgmma.
  VisitedTiles tiles;
  int steps, count;  // query tiles of one head, of all heads
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

  // Adds dS K without the terms whose dS is 0. A query that sees a non-finite element has a NaN in its dS, so no
  // term is lost.
  static __device__ __forceinline__ void add_selected(Panel& dq, typename Panel::DsTile ds, typename Panel::KPanel k) {
    const LaneCoord lane = lane_coord_in_warpgroup();
    const auto element = [](unsigned address) {
      return widen<E>(*static_cast<const unsigned short*>(__cvta_shared_to_generic(address)));
    };
#pragma unroll 1
    for (int key = 0; key < Panel::kTileK; ++key) {
      const unsigned at = key % 8 * 2;
      const float d[2] = {element(ds.piece(lane.row, key) + at), element(ds.piece(lane.row + 8, key) + at)};
#pragma unroll
      for (int n = 0; n < Panel::kColumns / 8; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float value = element(k.piece(key, 8 * n) + (lane.column + x % 2) * 2);
          if (d[x / 2] != 0) dq.sums[n].x[x] += d[x / 2] * value;
        }
    }
  }
  __device__ __forceinline__ void mainloop() {
    const bool select = selects();
    int member = 0, step = 0;
    Panel::release_all_ds(count);
#pragma unroll 1
    for (int iteration = 0; iteration < count; ++iteration) {
      converge();
      if constexpr (keeps_dq(C)) {
        const KeyTask& coord = pipeline.task(keys.slot());  // for its fields there are no registers
        const int tile = tiles.tile(step);
        Panel::for_all_kept(
            p.backward, pipeline, iteration, count, pipeline.k().address, member, tile, tile >= coord.begins_dq,
            tile < coord.ends_dq,
            [select](Panel& dq, auto ds, auto k) {
              if (select) add_selected(dq, ds, k);
              else dq.multiply_add(ds, k);
            },
            [&](const Panel& dq, int column) {
              dq.store(p.backward, coord.b, coord.first_head + member, tile, column);
            });
      } else {
        const int64 tile = tiles_before + member * tiles_of_head + tiles.tile(step);
        Panel::for_all(
            pipeline, iteration, count, pipeline.k().address,
            [select](Panel& dq, auto ds, auto k) {
              if (select) {
#pragma unroll
                for (int n = 0; n < Panel::kColumns / 8; ++n) dq.sums[n] = {};
                add_selected(dq, ds, k);
              } else {
                dq.multiply(ds, k);
              }
            },
            [&](const Panel& dq, int column) { dq.add_to_accum(p.backward, tile, column); });
      }
      if (++step == steps) step = 0, ++member;
    }
  }

  // Counts the task for its heads, after all of its dQ has been added.
  __device__ __forceinline__ void count_task() const {
    named_barrier_sync(Pipeline::kDqBarrier, kWarpgroupThreads);
    if (thread() == 0) {
      const KeyTask& coord = pipeline.task(keys.slot());
      unsigned* done = p.backward.dq_tasks + int64{coord.b} * p.backward.attention.heads_q + coord.first_head;
#pragma unroll 1
      for (int n = 0; n < coord.group; ++n) add_release(done + n, 1);
    }
    __syncwarp();
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
      release_stage(pipeline.k_empty(), new_thread_id() % 32);
      if (p.backward.dq_tasks) count_task();
      converge();
    }
  }
};

}  // namespace cuflash
