// Producer warpgroup of the forward kernel: one warp issues the TMA loads of K and V, one those of Q, one zeroes hidden
// values, one draws tickets and counts tiles.
#pragma once

#include "sm90/forward/forward_tiles.h"
#include "sm90/forward/packed_rows.h"
#include "sm90/forward/paged_keys.h"
#include "sm90/mask_bits.h"
#include "sm90/tma_load.h"
#include "tile/finite.h"

namespace cuflash {

// Called by one thread as soon as the CTA begins; otherwise the first TMA load would also wait for its tensor map.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void prefetch_maps(const Sm90ForwardParams& p) {
  prefetch(p.k), prefetch(p.q), prefetch(p.v);
  if constexpr ((C.schedule & kTmaBias) != 0) prefetch(p.bias);
  if constexpr (reads_mask(C)) prefetch(p.mask);
  if constexpr ((C.schedule & kStoreBySmem) != 0) {
    if (p.store_o_by_tma) prefetch(p.o);
  }
}

// Loads K of a listed tile, and the mask bits for the warpgroups that do not see all of it.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void load_keys_and_mask(const Sm90ForwardParams& p, const Pipeline<C>& pipeline,
                                                   const VisitedWork<C>& work, int stage, ListedMaskTile listed) {
  const AttentionParams& a = p.forward.attention;
  const MaskSummary& m = a.summary;
  const unsigned full = pipeline.k_full(stage), mask_bytes = mask_tile_bytes(C) / (m.rows > 1 ? 1 : kWarpgroupRows);
  const int key = listed.tile() * C.tile_k;
  unsigned bytes = Pipeline<C>::KTile::kBytes;
#pragma unroll
  for (int group = 0; group < C.warpgroups; ++group) bytes += listed.shows_all(group) ? 0 : mask_bytes;
  pipeline.listed_tile(stage) = listed;
  mbarrier_arrive_expect_tx(full, bytes);
  tma_load_panels(pipeline.k(stage), p.k, a.k, full, static_cast<int>(work.sequence.k_begin) + key, work.head_k(a),
                  work.b);
#pragma unroll
  for (int group = 0; group < C.warpgroups; ++group)
    if (!listed.shows_all(group))
      tma_load_mask(pipeline.mask(stage, group), p.mask, m, full, key, work.q_first + group * kWarpgroupRows, work.h,
                    work.b);
}

// Loads tiles of K, or of V. With kSplitKeys and few readers, other CTAs do not read the same keys, or read them at the
// same time. So keys need not stay in L2, where they would evict lines that must be written back. Few loads are in
// flight, so that memory serves all CTAs equally and CTAs that read the same keys stay together:
// docs/lab/sm90_forward.md.
template <Sm90ForwardConfig C>
struct KeyLoads {
  static constexpr int kTileBytes = C.tile_k * (C.dim_qk + C.dim_v) * 2;
  static constexpr int kInFlight = (kSplitBytesInFlight + kTileBytes - 1) / kTileBytes;
  static constexpr bool kLimits = splits_keys(C) && kInFlight < C.stages;
  bool few_readers;
  EvictionPolicy policy;

  __device__ explicit KeyLoads(const KeySplits& splits) : few_readers(splits.few_readers != 0), policy(0) {
    if constexpr (splits_keys(C)) policy = few_readers ? evict_first() : evict_normal();
  }

  // Waits for the tile kInFlight before the next one. full: the barrier of a stage on which its consumers wait; before
  // its first use a stage counts as full.
  template <class Full>
  __device__ __forceinline__ void wait(const Ring<C.stages>& next, Full&& full) const {
    if constexpr (kLimits) {
      if (!few_readers) return;
      const bool wraps = next.stage < kInFlight;
      mbarrier_wait(full(wraps ? next.stage + C.stages - kInFlight : next.stage - kInFlight),
                    wraps ? next.phase ^ 1 : next.phase);
    }
  }
  template <class Tile>
  __device__ __forceinline__ void load(Tile tile, const TensorMap& map, const RowsView& view, unsigned barrier, int row,
                                       int head, int batch) const {
    if constexpr (splits_keys(C)) tma_load_tile(tile, map, view, barrier, row, head, batch, policy);
    else tma_load_tile(tile, map, view, barrier, row, head, batch);
  }
  // tile: number of the key tile. pages: page_of_lane.
  template <class Tile>
  __device__ __forceinline__ void load_paged(Tile to, const TensorMap& map, const RowsView& view,
                                             const PageTable& table, unsigned barrier, int tile, int head,
                                             int pages) const {
    load_paged_tile<C>(to, table, barrier, tile, pages, [&](unsigned address, int column, int row, int page) {
      const int h = view.head_stride != 0 ? head : 0, entry = view.batch_stride != 0 ? page : 0;
      if constexpr (splits_keys(C)) tma_load(address, map, barrier, column, row, h, entry, policy);
      else tma_load(address, map, barrier, column, row, h, entry);
    });
  }
};

// Whether a producer loads its second tile only after the first has arrived. Memory serves the loads of all CTAs in
// turn, so that the first tiles of all of them would otherwise arrive hardly earlier than the second ones. If sequences
// have one key tile, that is the time of a whole tile.
template <Sm90ForwardConfig C>
constexpr bool kStartsWithOneTile = has_one_key_tile(C);

// Called by one thread. It loads K of a tile before V of the previous tile, as the consumers use them.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void load_keys_and_values(const Sm90ForwardParams& p, const Pipeline<C>& pipeline) {
  const AttentionParams& a = p.forward.attention;
  const KeyLoads<C> loads(p.splits);
  Ring<C.stages> keys, values;
#pragma unroll 1
  for (ForwardTiles<C, TileReader::manual_release> tiles(p, pipeline); tiles.has_tile(p, pipeline); tiles.advance()) {
    const VisitedWork<C> work(a, p.mask_lists, tiles.tile(p), p.splits.splits);
    if (!work.exists || work.begin == work.end) {
      tiles.release(pipeline);
      continue;
    }
    const int head = work.head_k(a), first = static_cast<int>(work.sequence.k_begin);
    const int nearly_done = min(work.begin + 1, work.end - 1);
    if constexpr (kStartsWithOneTile<C>) {
      if (values.stage == 1 && values.phase == 0) mbarrier_wait(pipeline.v_full(0), 0);
    }
    ListedMaskTile listed{}, previous{};  // with a mask tensor: tiles of the next K and V, read ahead
    if constexpr (reads_mask(C)) listed = work.listed(work.end - 1);
#pragma unroll 1
    for (int tile = work.end - 1; tile >= work.begin - 1; --tile) {
      if (tile == nearly_done) tiles.release(pipeline);
      if (tile >= work.begin) {
        mbarrier_wait(pipeline.k_empty(keys.stage), keys.phase ^ 1);
        loads.wait(keys, [&](int stage) { return pipeline.k_full(stage); });
        if constexpr (reads_mask(C)) load_keys_and_mask<C>(p, pipeline, work, keys.stage, listed);
        else
          loads.load(pipeline.k(keys.stage), p.k, a.k, pipeline.k_full(keys.stage), first + tile * C.tile_k, head,
                     work.b);
        keys.advance();
      }
      if (tile + 1 < work.end) {
        mbarrier_wait(pipeline.v_empty(values.stage), values.phase ^ 1);
        loads.wait(values, [&](int stage) { return pipeline.v_full(stage); });
        const bool sanitize = reads_mask(C) ? previous.hides_key() : work.has_hidden_values(a, tile + 1);
        loads.load(pipeline.v(values.stage), p.v, a.v,
                   sanitize ? pipeline.v_raw_full(values.stage) : pipeline.v_full(values.stage),
                   first + (reads_mask(C) ? previous.tile() : tile + 1) * C.tile_k, head, work.b);
        values.advance();
      }
      if constexpr (reads_mask(C)) {
        previous = listed;
        if (tile > work.begin) listed = work.listed(tile - 1);
      }
    }
  }
}

// With kPagedKeys, called by a whole warp; loads the same tiles in the same order.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void load_paged_keys_and_values(const Sm90ForwardParams& p, const Pipeline<C>& pipeline) {
  static_assert(!reads_mask(C));
  const AttentionParams& a = p.forward.attention;
  const KeyLoads<C> loads(p.splits);
  Ring<C.stages> keys, values;
#pragma unroll 1
  for (ForwardTiles<C, TileReader::warp_manual_release> tiles(p, pipeline); tiles.has_tile(p, pipeline);
       tiles.advance()) {
    const VisitedWork<C> work(a, p.mask_lists, tiles.tile(p), p.splits.splits);
    const auto release = [&] {
      if (lane_id() == 0) tiles.release(pipeline);
    };
    if (!work.exists || work.begin == work.end) {
      release();
      continue;
    }
    const int head = work.head_k(a), nearly_done = min(work.begin + 1, work.end - 1);
    int next = page_of_lane<C>(p.pages, work.b, work.end - 1), previous = 0;  // pages
#pragma unroll 1
    for (int tile = work.end - 1; tile >= work.begin - 1; --tile) {
      if (tile == nearly_done) release();
      if (tile >= work.begin) {
        mbarrier_wait(pipeline.k_empty(keys.stage), keys.phase ^ 1);
        loads.wait(keys, [&](int stage) { return pipeline.k_full(stage); });
        loads.load_paged(pipeline.k(keys.stage), p.k, a.k, p.pages, pipeline.k_full(keys.stage), tile, head, next);
        keys.advance();
      }
      if (tile + 1 < work.end) {
        mbarrier_wait(pipeline.v_empty(values.stage), values.phase ^ 1);
        loads.wait(values, [&](int stage) { return pipeline.v_full(stage); });
        const bool sanitize = work.has_hidden_values(a, tile + 1);
        loads.load_paged(pipeline.v(values.stage), p.v, a.v, p.pages,
                         sanitize ? pipeline.v_raw_full(values.stage) : pipeline.v_full(values.stage), tile + 1, head,
                         previous);
        values.advance();
      }
      previous = next;
      if (tile > work.begin) next = page_of_lane<C>(p.pages, work.b, tile - 1);
    }
  }
}

// Loads the bias of key tiles for every consumer warpgroup, in the order of K; used by one thread. The bias is indexed
// within the sequence, in packed tensors too.
template <Sm90ForwardConfig C>
struct BiasLoader {
  const Sm90ForwardParams& p;
  const Pipeline<C>& pipeline;
  const AttentionParams& a;
  unsigned bytes;  // bytes of a tile; a bias that is broadcast over the queries has boxes of one row
  Ring<C.stages> biases{};

  __device__ BiasLoader(const Sm90ForwardParams& p, const Pipeline<C>& pipeline)
      : p(p),
        pipeline(pipeline),
        a(p.forward.attention),
        bytes(bias_tile_bytes(C) / (a.bias.row_stride != 0 ? 1 : kWarpgroupRows)) {}
  __device__ __forceinline__ void load(const VisitedWork<C>& work) {
    if (!work.exists) return;
#pragma unroll 1
    for (int tile = work.end - 1; tile >= work.begin && work.end != 0; --tile, biases.advance()) {
      const unsigned full = pipeline.bias_full(biases.stage);
      mbarrier_wait(pipeline.bias_empty(biases.stage), biases.phase ^ 1);
      mbarrier_arrive_expect_tx(full, C.warpgroups * bytes);
#pragma unroll 1
      for (int group = 0; group < C.warpgroups; ++group) {
        const int row = work.q_first + group * kWarpgroupRows;
        tma_load_panels(pipeline.bias(biases.stage, group), p.bias, a.bias, full, a.bias.row_stride != 0 ? row : 0,
                        work.h, work.b, work.key_tile(tile) * C.tile_k);
      }
    }
  }
};

// Counts the key tiles of a query tile for the statistics, once for all of its splits. The statistics assume tiles that
// begin with the first query. With a mask tensor, the kernel that makes the lists counts instead.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void count_visited_tiles(const AttentionParams& a, const WorkTile<C>& work) {
  if (reads_mask(C) || !work.exists || (splits_keys(C) && work.split != 0)) return;
  const int first = work.q_first + (ends_with_full_tile(C) ? work.missing_rows(a) : 0);
  const Range queries = work.queries(a, first, tile_q_of(C));
  count_tiles<C.tile_k>(a, work.sequence, queries, visited_key_tiles<C.tile_k>(a, work.sequence, queries));
}
// Called by one thread: draws tickets if tiles are listed, counts tiles if the caller requests statistics, and loads
// the bias.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void run_last_producer(const Sm90ForwardParams& p, const Pipeline<C>& pipeline) {
  const AttentionParams& a = p.forward.attention;
  const auto count = [&](const WorkTile<C>& work) {
    if (a.tile_counts) count_visited_tiles<C>(a, work);
  };
  if constexpr (lists_tiles(C) && has_bias_tiles(C)) {
    BiasLoader<C> biases(p, pipeline);
    draw_tickets(p, pipeline, [&](const VisitedWork<C>& work) { count(work), biases.load(work); });
  } else if constexpr (lists_tiles(C)) {
    draw_tickets(p, pipeline, count);
  } else {
    if (a.tile_counts && !reads_mask(C)) {
#pragma unroll 1
      for (ForwardTiles<C> tiles(p, pipeline); tiles.has_tile(p, pipeline); tiles.advance())
        count_visited_tiles<C>(a, WorkTile<C>(a, tiles.tile(p), p.splits.splits));
    }
    if constexpr (has_bias_tiles(C)) {
      BiasLoader<C> biases(p, pipeline);
#pragma unroll 1
      for (ForwardTiles<C> tiles(p, pipeline); tiles.has_tile(p, pipeline); tiles.advance())
        biases.load(forward_work<C>(p, tiles.tile(p)));
    }
  }
}

// Called by one lane per consumer warpgroup. Nothing is loaded for a tile without visible keys, but the barrier phases
// advance with every round.
template <Sm90ForwardConfig C>
__device__ __forceinline__ void load_queries(const Sm90ForwardParams& p, const Pipeline<C>& pipeline) {
  const AttentionParams& a = p.forward.attention;
  ForwardTiles<C> tiles(p, pipeline);
#pragma unroll 1
  for (; tiles.has_tile(p, pipeline); tiles.advance()) {
    const int group = new_thread_id() % 32;  // read here, so that nothing derived from it stays in registers
    const unsigned round = tiles.round();
    TileInfo& info = pipeline.info(group, round);
    write_tile_info<C>(info, a, forward_work<C>(p, tiles.tile(p)), group);
    mbarrier_wait(pipeline.q_empty(group, round), pipeline.query_phase(round) ^ 1);
    if constexpr (kStartsWithOneTile<C>) {
      if (round == 1) mbarrier_wait(pipeline.q_full(group, 0), 0);
    }
    const unsigned full = pipeline.q_full(group, round);
    const bool no_rows = ends_with_full_tile(C) || aligns_tiles_to_mask(C) ? info.rows_end <= 0 : info.rows_end == 0;
    if (no_rows || info.begin == info.end) mbarrier_arrive(full);
    else if constexpr (packs_heads(C)) tma_load_packed_rows(pipeline.q(group, round), p.q, a, full, info);
    else tma_load_tile(pipeline.q(group, round), p.q, a.q, full, info.q_begin + info.q_first, info.h, info.b);
  }
  if constexpr (lists_tiles(C)) {  // the consumers do not know how many rounds there are
    const int group = new_thread_id() % 32;
    pipeline.info(group, tiles.round()).rows_end = kNoMoreTiles;
    mbarrier_wait(pipeline.q_empty(group, tiles.round()), pipeline.query_phase(tiles.round()) ^ 1);
    mbarrier_arrive(pipeline.q_full(group, tiles.round()));
  }
}

// Zeroes values that no query of the tile sees, called by one warp: a probability of 0 would not stop their NaN in P V.
template <Sm90ForwardConfig C>
struct ValueSanitizer {
  using VTile = typename Pipeline<C>::VTile;
  static constexpr int kPiecesOfRow = kPanelRowBytes / 16;

  const AttentionParams& a;
  const VisitedWork<C>& work;

  __device__ static uint4* piece(VTile tile, int n) {
    return reinterpret_cast<uint4*>(__cvta_shared_to_generic(tile.address)) + n;
  }
  // Without a mask tensor, all tiles that are sanitized have hidden keys.
  __device__ bool has_outside(int tile) const {
    const int first = tile * C.tile_k;
    return first < work.seen_begin || first + C.tile_k > work.seen_end;
  }
  // 16-byte pieces are stored panel by panel, row by row within a panel.
  __device__ void zero_rows(VTile tile, int begin, int end) const {
#pragma unroll 1
    for (int n = begin * kPiecesOfRow + lane_id(); n < end * kPiecesOfRow; n += 32)
#pragma unroll
      for (int panel = 0; panel < VTile::kPanels; ++panel) *piece(tile, panel * C.tile_k * kPiecesOfRow + n) = {};
  }
  // Zeroes the rows outside of the window. Consumers wait for this, and often there are few such rows, so it visits
  // only those.
  __device__ void zero_outside(VTile tile, int first) const {
    zero_rows(tile, 0, min(work.seen_begin - first, C.tile_k));
    zero_rows(tile, max(work.seen_end - first, 0), C.tile_k);
  }
  __device__ bool is_seen(const MaskOfHead& mask, int key) const {
    const Range queries = work.tile_queries();
    bool seen = false;
#pragma unroll 1
    for (int i = static_cast<int>(queries.begin) + lane_id(); i < queries.end; i += 32) {
      const Range keys = keys_of_query(a, work.sequence, i);
      seen |= key >= keys.begin && key < keys.end && (mask_row(mask, i)[key / 32] >> key % 32 & 1) != 0;
    }
    return __any_sync(0xffffffffu, seen);
  }
  // Whether rows [first, first + 16) hold a non-finite value.
  __device__ bool has_not_finite_value(VTile tile, int first) const {
    constexpr int kBatch = 2;  // loads in flight
    unsigned sums[4] = {};
#pragma unroll 1
    for (int n = lane_id(); n < VTile::kPanels * kMaskBlock * kPiecesOfRow; n += 32 * kBatch) {
      const int panel = n / (kMaskBlock * kPiecesOfRow), in_panel = n % (kMaskBlock * kPiecesOfRow);
      uint4 x[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        x[i] = *piece(tile, (panel * C.tile_k + first) * kPiecesOfRow + in_panel + 32 * i);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) add_zero_times<C.element>(sums, x[i]);
    }
    return __any_sync(0xffffffffu, any_not_finite(sums));
  }
  // Zeroes blocks that no query sees, and searches blocks whose keys may be hidden for non-finite values.
  __device__ void zero_unseen(VTile tile, int first, MaskKeyBlocks blocks) const {
#pragma unroll 1
    for (int n = 0; n < C.tile_k / kMaskBlock; ++n) {
      if (!blocks.is_seen(n)) zero_rows(tile, n * kMaskBlock, (n + 1) * kMaskBlock);
      else if (blocks.may_hide(n) && has_not_finite_value(tile, n * kMaskBlock))
        zero_unseen_rows(tile, first, n * kMaskBlock);
    }
  }
  // Zeroes the unseen ones of 16 rows. It reads the mask bits only of rows that have a non-finite value.
  __device__ void zero_unseen_rows(VTile tile, int first, int first_row) const {
    static_assert(VTile::kPanels * kPiecesOfRow <= 32);
    const MaskOfHead mask = mask_of_head(a.summary, work.b, work.h);
#pragma unroll 1
    for (int row = first_row; row < first_row + kMaskBlock; ++row) {
      const bool has_piece = lane_id() < VTile::kPanels * kPiecesOfRow;
      uint4* mine = piece(
          tile, lane_id() / kPiecesOfRow * (C.tile_k * kPiecesOfRow) + row * kPiecesOfRow + lane_id() % kPiecesOfRow);
      if (!__any_sync(0xffffffffu, has_piece && has_not_finite<C.element>(*mine))) continue;
      if (!is_seen(mask, first + row) && has_piece) *mine = {};
    }
  }
};

template <Sm90ForwardConfig C>
__device__ __forceinline__ void sanitize_values(const Sm90ForwardParams& p, const Pipeline<C>& pipeline) {
  const AttentionParams& a = p.forward.attention;
  Ring<C.stages> values;
  unsigned phases = 0;  // phases of v_raw_full, one bit per stage: only some tiles use it
#pragma unroll 1
  for (ForwardTiles<C, TileReader::warp> tiles(p, pipeline); tiles.has_tile(p, pipeline); tiles.advance()) {
    const VisitedWork<C> work(a, p.mask_lists, tiles.tile(p), p.splits.splits);
    if (!work.exists) continue;
#pragma unroll 1
    for (int n = work.end - 1; n >= work.begin && work.end != 0; --n, values.advance()) {
      if (!work.sanitizes(a, n)) continue;
      const int tile = work.key_tile(n);
      MaskKeyBlocks blocks{};  // read before the values arrive
      if constexpr (reads_mask(C)) blocks = work.key_blocks(p.mask_lists, n);
      mbarrier_wait(pipeline.v_raw_full(values.stage), phases >> values.stage & 1);
      phases ^= 1u << values.stage;
      const ValueSanitizer<C> sanitizer{a, work};
      if (!reads_mask(C) || sanitizer.has_outside(tile))
        sanitizer.zero_outside(pipeline.v(values.stage), tile * C.tile_k);
      __syncwarp();
      if constexpr (reads_mask(C)) sanitizer.zero_unseen(pipeline.v(values.stage), tile * C.tile_k, blocks);
      async_proxy_fence();
      __syncwarp();
      if (lane_id() == 0) mbarrier_arrive(pipeline.v_full(values.stage));
    }
  }
}

}  // namespace cuflash
