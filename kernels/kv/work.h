// The work item of one CTA, decoded in the prologue, and how its consumer warps share it. Also the mainloop step of one
// warp (scores, softmax, O += P V), which kv/attention.h and kv/sm90_attention.h have in common.
//
//   shared memory   K, V of each stage | Q | per stage: key offsets or mbarriers. The epilogue reuses it for partials
//   per warp        16 rows of each block, tile_k / key_warps keys, dim_v / column_warps columns of O
#pragma once

#include "attn/sequence.h"
#include "attn/softmax.h"
#include "kv/products.h"
#include "kv/rows.h"

namespace cuflash {

// Named barriers of the kv kernels (bar.sync, bar.arrive).
enum KvBarrier : int {
  kConsumerBarrier = 1,  // among consumers
  kPrologueBarrier = 2,  // Q is loaded; the producer warp, which only arrives, has initialised the mbarriers
  kEpilogueBarrier = 3,  // partials are in shared memory; the producer warp only arrives, the ticket is prepared
  kPartialsBarrier = 4,  // partials are in shared memory: consumers only arrive, the producer warp waits
};

template <KvConfig C>
struct KvWork {
  static constexpr Element E = C.element;
  using Real = RealOf<E>;
  static constexpr int kKeys = C.tile_k / C.key_warps;       // keys per warp
  static constexpr int kColumns = C.dim_v / C.column_warps;  // columns of O per warp
  static constexpr int kScoreTiles = kKeys / 8, kOutputTiles = kColumns / 8;
  static_assert(C.tile_q == row_blocks(C) * block_rows(C) && (row_blocks(C) == 1 || by_warpgroups(C)));
  static_assert(kKeys % 16 == 0 && kKeys * C.key_warps == C.tile_k);
  static_assert(kColumns % 16 == 0 && kColumns * C.column_warps == C.dim_v && C.stages >= 2);
  static_assert(!C.v_in_k || C.dim_v <= C.dim_qk);

  using QTile = Tile<E, C.tile_q, C.dim_qk>;
  using Rows = LaneRows<E, C.options>;
  using Scores = Accumulator<Real>[1][kScoreTiles];
  using Output = Accumulator<Real>[1][kOutputTiles];

  const KvParams& p;
  const AttentionParams& a;
  unsigned char* memory;
  WorkItem item;
  CachedSequence sequence;
  RowRange rows;     // rows that exist
  KeyRange seen;     // keys that at least one of them sees
  KeyRange common;   // keys that all of them see
  int splits;        // splits that have keys
  SplitTiles tiles;  // key tiles of this split

  __device__ __forceinline__ KvWork(const KvParams& p, unsigned char* memory, WorkItem item, int cached_rows)
      : p(p),
        a(p.attention),
        memory(memory),
        item(item),
        sequence(cached_sequence<C.fast_decode != 0>(p, item.b, cached_rows)),
        rows(rows_of_tile(a, sequence, item.row_tile, C.tile_q)) {
    const SeenKeys keys = keys_of_rows(a, sequence, rows);
    seen = keys.any, common = keys.all;
    const TileRange all = key_tiles(seen, C.tile_k);
    const UsedSplits used = used_splits(p, all);
    splits = used.long_splits + used.short_splits;
    tiles = tiles_of_split(all, used, item.split);
  }

  __device__ __forceinline__ KvWork(const KvParams& p, unsigned char* memory)
      : KvWork(p, memory, work_item(p, cta_number())) {}
  __device__ __forceinline__ KvWork(const KvParams& p, unsigned char* memory, WorkItem item)
      : KvWork(p, memory, item, p.cache.rows[item.b]) {}

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int column_warp() { return warp() % C.column_warps; }
  __device__ static int key_warp() { return warp() / C.column_warps % C.key_warps; }
  __device__ static int warp_row() { return warp() / (C.column_warps * C.key_warps) * 16; }
  __device__ static int lane_row() { return warp_row() + accumulator_row(); }

  // The static variants serve the producer before the work item is decoded.
  __device__ static unsigned char* stage_memory(unsigned char* memory, int stage) {
    return memory + stage * stage_bytes(C);
  }
  __device__ unsigned char* stage_memory(int stage) const { return stage_memory(memory, stage); }
  __device__ unsigned char* queries_memory() const { return stage_memory(C.stages); }
  __device__ QTile q_tile() const { return {queries_memory()}; }
  __device__ static unsigned char* stage_info(unsigned char* memory, int stage) {
    return memory + C.stages * stage_bytes(C) + queries_bytes(C) + stage * stage_info_bytes(C);
  }
  __device__ unsigned char* stage_info(int stage) const { return stage_info(memory, stage); }

  __device__ bool is_active() const { return item.split < splits && rows.first < rows_end(a, sequence); }
  __device__ int count() const { return tiles.count; }
  __device__ int first_key(int n) const { return (tiles.first + n * tiles.step) * C.tile_k; }
  __device__ bool every_row_sees(int n) const {
    return first_key(n) >= common.begin && first_key(n) + C.tile_k <= common.end;
  }

  // One mainloop step: S = Q K^T, softmax, O += P V for this warp's part of key tile n.
  template <class KTile, class VTile, class Wait>
  __device__ __forceinline__ void attend(int n, KTile k, VTile v, const Rows& lane_rows, Softmax<Real, 1>& softmax,
                                         Output& o, Wait&& wait_for_values) const {
    const int key = key_warp() * kKeys;
    Scores s;
    multiply_keys<C.dim_qk, E>(s, q_tile(), warp_row(), k, key);
    lane_rows.apply(s, first_key(n) + key + lane_id() % 4 * 2, every_row_sees(n));
    softmax.update(s, o);
    softmax.exponentiate(s);
    wait_for_values();
    add_values<E>(o, s, v, key, (C.v_in_k ? p.v_column : 0) + column_warp() * kColumns);
  }

  __device__ __forceinline__ void count_tiles() const {
    if (!a.tile_counts || item.split != 0 || threadIdx.x != 0 || rows.first >= rows.end) return;
    const TileRange all = key_tiles(seen, C.tile_k);
    // A last tile that is short but fully visible counts as full.
    const int full_end =
        common.end >= sequence.len_k ? (sequence.len_k + C.tile_k - 1) / C.tile_k : common.end / C.tile_k;
    const int full_begin = (common.begin + C.tile_k - 1) / C.tile_k;
    const int visited = all.end - all.begin, full = max(0, min(full_end, all.end) - max(full_begin, all.begin));
    atomicAdd(a.tile_counts + 0, static_cast<uint64>(visited));
    atomicAdd(a.tile_counts + 1, static_cast<uint64>(visited - full));
    atomicAdd(a.tile_counts + 2, static_cast<uint64>((sequence.len_k + C.tile_k - 1) / C.tile_k - visited));
  }
};

}  // namespace cuflash
