// The work of one CTA of cache_attention.h, and how its warps share it.
//
//   shared memory   K, V of each stage | Q | notes of each stage; sums of the key warps at the end
//   per warp        16 * kBlocks rows, tile_k / key_warps keys, dim_v / column_warps columns of O
#pragma once

#include "attn/sequence.h"
#include "attn/softmax.h"
#include "cache/products.h"
#include "cache/rows.h"

namespace cuflash {

template <CacheConfig C>
struct CacheWork {
  static constexpr Element E = C.element;
  using Real = RealOf<E>;
  static constexpr int kBlocks = row_blocks(C);              // of 16 rows, of a warp
  static constexpr int kKeys = C.tile_k / C.key_warps;       // of a warp
  static constexpr int kColumns = C.dim_v / C.column_warps;  // of O, of a warp
  static constexpr int kScoreTiles = kKeys / 8, kOutputTiles = kColumns / 8;
  // Where the sums take most registers, what each row sees is found out anew for a tile that not every row sees all of.
  static constexpr bool kForgets = kBlocks > 1 && C.options == 0;
  static_assert(C.tile_q == 16 * kBlocks * C.row_warps && kKeys % 16 == 0 && kKeys * C.key_warps == C.tile_k);
  static_assert(kColumns % 16 == 0 && kColumns * C.column_warps == C.dim_v && C.stages >= 2);
  static_assert(!C.v_in_k || C.dim_v <= C.dim_qk);

  using QTile = Tile<E, C.tile_q, C.dim_qk>;
  using Rows = LaneRows<E, C.options, kBlocks>;
  using RowSoftmax = Softmax<Real, kBlocks>;
  using Scores = Accumulator<Real>[kBlocks][kScoreTiles];
  using Output = Accumulator<Real>[kBlocks][kOutputTiles];

  const CacheParams& p;
  const AttentionParams& a;
  unsigned char* memory;
  CacheItem at;
  CachedSequence sequence;
  RowRange rows;    // that exist
  KeyRange seen;    // keys that one of them sees
  KeyRange common;  // keys that all of them see
  int splits;       // that have keys
  TileRange tiles;  // of this one

  __device__ __forceinline__ CacheWork(const CacheParams& p, unsigned char* memory)
      : p(p),
        a(p.attention),
        memory(memory),
        at(cache_item(p, cta_number())),
        sequence(cached_sequence(p, at.b)),
        rows(rows_of_tile(a, sequence, at.row_tile, C.tile_q)) {
    const SeenKeys keys = keys_of_rows(a, sequence, rows);
    seen = keys.any, common = keys.all;
    const TileRange all = key_tiles(seen, C.tile_k);
    const UsedSplits used = used_splits(p, all);
    splits = used.long_ones + used.short_ones;
    tiles = tiles_of_split(all, used, at.split);
  }

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int column_warp() { return warp() % C.column_warps; }
  __device__ static int key_warp() { return warp() / C.column_warps % C.key_warps; }
  __device__ static int warp_row() { return warp() / (C.column_warps * C.key_warps) * (16 * kBlocks); }
  __device__ static int lane_row() { return warp_row() + lane_id() / 4; }

  __device__ unsigned char* stage_memory(int stage) const { return memory + stage * stage_bytes(C); }
  __device__ QTile q_tile() const { return {stage_memory(C.stages)}; }
  // Known before the work is.
  __device__ static unsigned char* stage_notes(unsigned char* memory, int stage) {
    return memory + C.stages * stage_bytes(C) + QTile::kBytes + stage * stage_notes_bytes(C);
  }
  __device__ unsigned char* stage_notes(int stage) const { return stage_notes(memory, stage); }

  __device__ bool attends() const { return at.split < splits && rows.first < rows_end(a, sequence); }
  __device__ bool warp_has_rows() const { return rows.first + warp_row() < rows.end; }
  __device__ int count() const { return tiles.end - tiles.begin; }
  __device__ int first_key(int n) const { return (tiles.begin + n) * C.tile_k; }

  // Scores, softmax, values of this warp's part of the n-th tile.
  template <class KTile, class VTile>
  __device__ __forceinline__ void attend(int n, KTile k, VTile v, const Rows& lane_rows, RowSoftmax& softmax,
                                         Output& o) const {
    const int key = key_warp() * kKeys, k_first = first_key(n);
    Scores s;
    multiply_keys<C.dim_qk, E>(s, q_tile(), warp_row(), k, key);
    const bool full = k_first >= common.begin && k_first + C.tile_k <= common.end;
    const int lane_key = k_first + key + lane_id() % 4 * 2;
    if (kForgets && !full) Rows(p, sequence, at, rows, lane_row()).change(s, lane_key, false);
    else lane_rows.change(s, lane_key, kForgets || full);
    softmax.follow(s, o);
    softmax.weigh(s);
    add_values<E>(o, s, v, key, (C.v_in_k ? p.v_column : 0) + column_warp() * kColumns);
  }

  __device__ __forceinline__ void count_tiles() const {
    if (!a.tile_counts || at.split != 0 || threadIdx.x != 0 || rows.first >= rows.end) return;
    const TileRange all = key_tiles(seen, C.tile_k);
    // A last tile that is short but wholly visible counts as full.
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
