// Producer warpgroup of the backward kernel. It issues the TMA loads and, if the config has dq, computes dQ as well: it
// multiplies the consumers' dS by K and adds the product to dq_accum in global memory or to the sums that the CTA keeps,
// or, if there is one key tile, stores it.
#pragma once

#include "ptx/grid.h"
#include "ptx/warpgroup.h"
#include "sm90/backward/dq_panel.h"
#include "sm90/backward/options.h"
#include "sm90/backward/pipeline.h"
#include "sm90/ring.h"
#include "sm90/tma_load.h"
#include "tile/finite.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct BackwardProducer {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kPortable = portable_view(C);
  static constexpr int kTileK = tile_k_of(C);
  static constexpr int kPiecesOfRow = kPanelRowBytes / 16;
  static constexpr int kThreads = has_loader(C) ? 32 : kWarpgroupThreads;  // threads that load
  static_assert(C.tile_q == kWarpgroupRows && C.stages >= 2);
  // With dQ the producer fills one stage while it multiplies dS of another. Without dQ it only waits for free stages.
  static constexpr int kLoadsAhead = C.dq ? C.stages - 1 : C.stages;
  using Pipeline = BackwardPipeline<C>;
  using Panel = DqPanel<C>;

  // A query tile of one of the query heads that share the keys.
  struct Visit {
    int member = 0, step = 0;
    __device__ __forceinline__ void next(int steps) {
      if (++step == steps) step = 0, ++member;
    }
  };

  const Sm90BackwardParams& p;
  const AttentionParams& a;
  Pipeline pipeline;
  Ring<kTaskSlots> tasks;
  unsigned keys_phase = 0;
  // Fields of the task that every step needs. They are kept in registers because reads of shared memory queue behind
  // those of wgmma.
  VisitedTiles tiles;    // query tiles of one head that see the keys
  int steps, count;      // query tiles of one head, of all heads of the task
  int b, first_head;     // first query head of the task
  int first_row, len_q;  // first row and length of the sequence
  int64 tiles_before, tiles_of_head;
  int begins_dq, ends_dq;  // see KeyTask
  bool has_trailing_rows;  // the tensor has rows after the sequence
  // With a mask tensor: the list of query tiles, and its entries for next_load and for the next dQ, which are read one
  // step ahead.
  const int* listed;
  ListedMaskTile listed_load, listed_dq;
  Visit next_load;        // the next query tile to load
  float slope;            // ALiBi slope of the head of next_load, in units of log2
  DropoutStream stream;   // dropout stream of that head
  Ring<C.stages> stages;  // ring of Q, dO and row statistics
  unsigned raw_phase = 0;

  __device__ BackwardProducer(const Sm90BackwardParams& p, const Pipeline& pipeline)
      : p(p), a(p.backward.attention), pipeline(pipeline) {}

  __device__ __forceinline__ const KeyTask& task() const { return pipeline.task(tasks.stage); }

  __device__ __forceinline__ int64 query_tile(int member, int tile) const {
    return tiles_before + member * tiles_of_head + tile;
  }
  __device__ __forceinline__ void read_task() {
    const KeyTask& coord = task();
    const VisitedTiles& visited = coord.visited;
    tiles = {uniform(visited.begin), uniform(visited.full_begin), uniform(visited.full_end), uniform(visited.end),
             uniform(visited.num_masked)};
    steps = tiles.count(), count = uniform(coord.group) * steps;
    b = uniform(coord.b), first_head = uniform(coord.first_head);
    first_row = uniform(static_cast<int>(coord.sequence.q_begin)), len_q = uniform(coord.sequence.len_q);
    tiles_before = coord.tiles_before, tiles_of_head = coord.tiles_of_head;
    if constexpr (keeps_dq(C)) begins_dq = uniform(coord.begins_dq), ends_dq = uniform(coord.ends_dq);
    // TMA fills rows beyond the end of the tensor with zeros.
    has_trailing_rows = first_row + int64{len_q} < (a.cu_q ? a.total_q : a.len_q);
    if constexpr (reads_mask(C))
      listed =
          mask_list(p.backward.mask_lists, b, coord.head_k, coord.k_first / kTileK) + kMaskListHeader + tiles.begin;
    next_load = {};
    if constexpr (reads_mask(C))
      if (count > 0) listed_load = listed_dq = listed_tile(0);
  }
  __device__ __forceinline__ ListedMaskTile listed_tile(int step) const {
    return {static_cast<unsigned>(listed[step])};
  }
  __device__ __forceinline__ int tile_to_load() const {
    if constexpr (reads_mask(C)) return listed_load.tile();
    else return tiles.tile(next_load.step);
  }

  __device__ static int thread() { return new_thread_id() % kWarpgroupThreads; }
  __device__ static void sync() { named_barrier_sync(Pipeline::kProducerBarrier, kWarpgroupThreads); }
  template <class Tile>
  __device__ static uint4* pieces(Tile tile) {
    return static_cast<uint4*>(__cvta_shared_to_generic(tile.address));
  }

  // Called by one thread after all consumers have released the previous K and V.
  __device__ __forceinline__ void load_keys_and_values() const {
    const TaskCoord& coord = task();
    const int row = static_cast<int>(coord.sequence.k_begin) + coord.k_first;
    if (count == 0) {
      mbarrier_arrive(pipeline.k_full()), mbarrier_arrive(pipeline.v_full());
      return;
    }
    tma_load_tile(pipeline.k(), p.k, a.k, pipeline.k_full(), row, coord.head_k, coord.b);
    tma_load_tile(pipeline.v(), p.v, a.v, pipeline.v_full(), row, coord.head_k, coord.b);
  }
  // Writes the StepInfo of the next query tile. Called by one thread; reads the values of a head only once.
  __device__ __forceinline__ void write_step_info(int tile) {
    const int head = first_head + next_load.member;
    if (next_load.step == 0) {
      if constexpr ((C.options & kAlibi) != 0) slope = slope_log2(a, b, head);
      if constexpr ((C.options & kDropout) != 0) stream = stream_of(a, b, head);
    }
    const TaskCoord& coord = task();
    StepInfo& info = pipeline.step_info(stages.stage);
    info.head = head, info.q_first = tile * C.tile_q;
    if constexpr (reads_mask(C)) info.mask_tile = listed_load.word;
    if constexpr ((C.options & kAlibi) != 0) {
      const int64 distance = info.q_first + coord.sequence.shift - coord.k_first;
      constexpr bool kAffine = BackwardOptions<E, C.options>::kAffineAlibi;
      const bool after = kAffine && distance + C.tile_q <= 1;
      info.distance = static_cast<float>(distance), info.slope = after ? -slope : slope;
      info.dot_slope = info.slope * p.factors.dots;
      info.spans_diagonal = !after && distance < kTileK - 1 && a.window_right > 0;
    }
    if constexpr ((C.options & kDropout) != 0) info.stream = stream;
  }
  // Waits until DeferredPrepare has prepared the head of next_load. Called by one thread before the first load of that
  // head.
  __device__ __forceinline__ void wait_until_prepared() const {
    const unsigned* tiles = p.backward.prepared_tiles + int64{b} * a.heads_q + first_head + next_load.member;
    const unsigned all = static_cast<unsigned>(tiles_in(a.len_q, C.tile_q));
    while (load_acquire(tiles) < all) sleep_for(100);
    async_proxy_fence_global();
  }
  // Called by one thread.
  __device__ __forceinline__ void load_queries(int tile, unsigned q_barrier, unsigned dout_barrier) {
    const int stage = stages.stage, row = first_row + tile * C.tile_q, head = first_head + next_load.member;
    if constexpr (has_loader(C))
      if (next_load.step == 0) wait_until_prepared();
    mbarrier_wait(pipeline.q_empty(stage), stages.phase ^ 1);
    if constexpr (C.options != 0) write_step_info(tile);
    unsigned bytes = Pipeline::QTile::kBytes + Pipeline::kStatsBytes;
    if constexpr ((C.options & kBias) != 0) bytes += box_bytes(a.bias, bias_tile_bytes(C));
    bool masks = false;  // whether the mask hides a pair of the tile from some warpgroup
    if constexpr (reads_mask(C)) {
#pragma unroll
      for (int group = 0; group < C.warpgroups; ++group) masks |= !listed_load.shows_all(group);
      if (masks) bytes += mask_boxes(C) * (a.summary.rows > 1 ? kMaskBitsBytes : kMaskBoxBytes);
    }
    mbarrier_arrive_expect_tx(q_barrier, bytes);
    tma_load_panels(pipeline.q(stage), p.q, a.q, q_barrier, row, head, b);
    tma_load_row_stats(pipeline.stats_address(stage), p.row_stats, q_barrier, query_tile(next_load.member, tile));
    if constexpr ((C.options & kBias) != 0)
      tma_load_bias(pipeline.bias(stage), p.bias, a.bias, q_barrier, task().k_first, tile * C.tile_q, head, b);
    if constexpr (reads_mask(C))
      if (masks)
#pragma unroll
        for (int box = 0; box < mask_boxes(C); ++box)
          tma_load_mask(pipeline.mask_box(stage, box), p.mask, a.summary, q_barrier,
                        task().k_first + box * 2 * kWarpgroupRows, tile * C.tile_q, head, b);
    mbarrier_arrive_expect_tx(dout_barrier, Pipeline::DoutTile::kBytes);
    tma_load_panels(pipeline.dout(stage), p.dout, p.backward.dout, dout_barrier, row, head, b);
  }
  template <class Tile>
  __device__ __forceinline__ void zero_rows(Tile tile, int first) const {
#pragma unroll 1
    for (int n = thread(); n < Tile::kBytes / 16; n += kThreads)
      if (n / kPiecesOfRow % C.tile_q >= first) pieces(tile)[n] = {};
  }

  // Loads the next query tile, and zeroes its rows beyond the sequence: a probability of 0 would not keep their NaN out
  // of dK and dV.
  __device__ __forceinline__ void load_next_queries() {
    const int tile = tile_to_load(), stage = stages.stage;
    const bool sanitizes = has_trailing_rows && (tile + 1) * C.tile_q > len_q;
    const unsigned q_full = pipeline.q_full(stage), dout_full = pipeline.dout_full(stage),
                   raw_full = pipeline.raw_full();
    if (thread() == 0) load_queries(tile, sanitizes ? raw_full : q_full, sanitizes ? raw_full : dout_full);
    __syncwarp();
    if (sanitizes) {
      mbarrier_wait(raw_full, raw_phase);
      raw_phase ^= 1;
      const int first = len_q - tile * C.tile_q;
      zero_rows(pipeline.q(stage), first);
      zero_rows(pipeline.dout(stage), first);
      async_proxy_fence();
      if (kThreads == 32) __syncwarp();
      else sync();
      if (thread() == 0) mbarrier_arrive(q_full), mbarrier_arrive(dout_full);
      __syncwarp();
    }
    next_load.next(steps), stages.advance();
    if constexpr (reads_mask(C)) listed_load = listed_tile(next_load.step);
  }

  // The K tile that dS is multiplied by. If some query must not see all keys, non-finite elements are zeroed: a query
  // that does see them has a NaN in its dS anyway. The scores need the original, so the zeroes go into a copy.
  __device__ __forceinline__ typename Pipeline::KTile keys_for_dq() const {
    const auto k = pipeline.k(), finite = pipeline.finite_k();
    mbarrier_wait(pipeline.k_full(), keys_phase);
    if (tiles.num_masked == 0) return k;
    bool found = false;
#pragma unroll 4
    for (int n = thread(); n < k.kBytes / 16; n += kWarpgroupThreads) found |= has_not_finite<E>(pieces(k)[n]);
    if (!named_barrier_any(Pipeline::kProducerBarrier, kWarpgroupThreads, found)) return k;
#pragma unroll 1
    for (int n = thread(); n < k.kBytes / 16; n += kWarpgroupThreads) pieces(finite)[n] = finite_eight<E>(pieces(k)[n]);
    async_proxy_fence();
    sync();
    return finite;
  }

  // The query tile whose dQ a step adds to.
  __device__ __forceinline__ int tile_for_dq(const Visit& visit) {
    if constexpr (!reads_mask(C)) return tiles.tile(visit.step);
    const int tile = listed_dq.tile();
    listed_dq = listed_tile(visit.step + 1 == steps ? 0 : visit.step + 1);
    return tile;
  }
  // Processes the query tiles that see these keys.
  __device__ __forceinline__ void mainloop() {
    if constexpr (C.dq) compute_dq(uniform(keys_for_dq().address));
    else load_remaining_queries();
  }
  __device__ __forceinline__ void load_remaining_queries() {
#pragma unroll 1
    for (int iteration = kLoadsAhead; iteration < count; ++iteration) load_next_queries();
  }
  __device__ __forceinline__ void compute_dq(unsigned keys) {
    Visit visit;
    Panel::release_all_ds(count);
#pragma unroll 1
    for (int iteration = 0; iteration < count; ++iteration, visit.next(steps)) {
      if (iteration + kLoadsAhead < count) load_next_queries();
      converge();
      const int tile = tile_for_dq(visit);
      const auto store = [&](const Panel& dq, int column) {
        dq.store(p.backward, b, first_head + visit.member, tile, column);
      };
      if constexpr (keeps_dq(C)) {
        Panel::for_all_kept(
            p.backward, pipeline, iteration, count, uniform(keys), visit.member, tile, tile >= begins_dq,
            tile < ends_dq, [](Panel& dq, auto ds, auto k) { dq.multiply_add(ds, k); }, store);
      } else {
        Panel::for_all(
            pipeline, iteration, count, uniform(keys), [](Panel& dq, auto ds, auto k) { dq.multiply(ds, k); },
            [&](const Panel& dq, int column) {
              if constexpr (C.dq == kStoresDq) store(dq, column);
              else dq.add_to_accum(p.backward, query_tile(visit.member, tile), column);
            });
      }
    }
  }

  // Persistent loop over key tiles. The first query tile of a key tile is loaded while the consumers finish the
  // previous key tile.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (bool first = true;; tasks.advance(), keys_phase ^= 1, first = false) {
      const bool ends = uniform(task().written) < 0;
      read_task();
      if (count > 0) load_next_queries();
      if (!first) {
        // Meeting keeps the warps together: consumers that find no query tiles may release the next keys, too, before a
        // late warp has seen this release.
        mbarrier_wait(pipeline.k_empty(), keys_phase ^ 1);
        sync();
      }
      converge();
      if (ends) break;
      if (thread() == 0) load_keys_and_values();
      __syncwarp();
#pragma unroll 1
      for (int n = 1; n < min(kLoadsAhead, count); ++n) load_next_queries();
      if (thread() == kWarpgroupThreads - 1) {
        KeyTask& next = pipeline.task((tasks.stage + 1) % kTaskSlots);
        if constexpr (keeps_dq(C)) write_next_task_of_head<kPortable>(next, task(), p.backward);
        else write_next_task<kPortable>(next, p.backward, &task(), first);
      }
      converge();
      if (count > 0) mainloop();
      sync();  // the next task is written
      converge();
    }
    if (thread() == 0) mbarrier_arrive(pipeline.k_full());
  }
};

}  // namespace cuflash
