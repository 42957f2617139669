// Static persistent tile scheduler of the forward and dQ kernels. Every warp evaluates it independently, with the same
// result.
#pragma once

#include "ptx/compiler.h"
#include "ptx/special_registers.h"
#include "sm90/tile_info.h"

namespace cuflash {

// Query tiles of this CTA, one per round.
struct TileScheduler {
  unsigned round = 0;

  // read_cta_index is volatile: the index is read here instead of being kept in a register.
  __device__ __forceinline__ TileCoord tile(const TileOrder& order) const {
    unsigned cta, ctas;
    read_cta_index(cta, ctas);
    return tile_of(order, cta, ctas, round);
  }
  __device__ bool has_tile(const TileOrder& order) const { return round < order.rounds; }
  __device__ void advance() { ++round; }
};

// The queries of rows that are pairs of a query and a head of a group (kPackHeads).
__device__ __forceinline__ Range queries_of_rows(const Sequence& s, int group, int first, int count) {
  return {query_of_packed_row(first, group), min(query_of_packed_row(first + count - 1, group) + 1, s.len_q)};
}

// A query tile and the keys it sees. C: the kernel's config. splits: number of CTAs that share the keys of a query
// tile, which then has one work item for each. With kPackHeads h is a KV head, and q_first a row: query * group + head.
template <auto C>
struct WorkTile {
  int b, h;
  int q_first;  // negative if the tile's first warpgroups have no rows: see ends_with_full_tile
  Sequence sequence;
  int seen_begin, seen_end;  // keys visible to some query
  int begin, end;            // key tiles, visited in descending order
  bool exists;               // the tile has rows to store
  int split;                 // with kSplitKeys: index of the part of the keys

  __device__ __forceinline__ WorkTile(const AttentionParams& a, const TileCoord& tile, unsigned splits = 1) {
    exists = tile.exists;
    if (!exists) return;
    const unsigned head = splits_keys(C) ? tile.head / splits : tile.head;
    if constexpr (splits_keys(C)) split = static_cast<int>(tile.head - head * splits);
    const int heads = packs_heads(C) ? a.heads_k : a.heads_q;
    b = static_cast<int>(head / static_cast<unsigned>(heads)), h = static_cast<int>(head) - b * heads;
    q_first = static_cast<int>(tile.q_tile) * tile_q_of(C);
    sequence = sequence_of(a, b);
    if constexpr (aligns_tiles_to_mask(C)) return;  // VisitedWork sets the rows
    if constexpr (ends_with_full_tile(C)) q_first -= missing_rows(a);
    exists = q_first < rows_end(a);
    find_keys(a, queries(a, q_first, tile_q_of(C)));
    if constexpr (splits_keys(C)) keep_split(static_cast<int>(splits));
  }
  __device__ __forceinline__ void find_keys(const AttentionParams& a, Range of_queries) {
    const Range seen = keys_of_any(a, sequence, of_queries);
    seen_begin = static_cast<int>(seen.begin), seen_end = static_cast<int>(seen.end);
    begin = seen.empty() ? 0 : seen_begin / C.tile_k, end = seen.empty() ? 0 : (seen_end - 1) / C.tile_k + 1;
  }

  // Rows that the first tile lacks, in whole warpgroups.
  __device__ int missing_rows(const AttentionParams& a) const {
    const unsigned rows = static_cast<unsigned>(rows_end(a)), beyond = rows % tile_q_of(C);
    return beyond == 0 ? 0 : (tile_q_of(C) - static_cast<int>(beyond)) / kWarpgroupRows * kWarpgroupRows;
  }
  // Every split has the same number of the visible tiles, or one more; if there are few tiles, some splits have none.
  __device__ void keep_split(int splits) {
    const int count = end - begin, least = count / splits, more = count - least * splits;
    begin += least * split + min(split, more);
    end = begin + least + (split < more ? 1 : 0);
  }
  __device__ Range queries(int first, int count) const {
    return {ends_with_full_tile(C) ? max(first, 0) : first, min(int64{first} + count, int64{sequence.len_q})};
  }
  __device__ Range queries(const AttentionParams& a, int first, int count) const {
    if constexpr (packs_heads(C)) return queries_of_rows(sequence, a.group, first, count);
    else return queries(first, count);
  }
  // Rows below this are stored: a dense tensor has rows beyond the sequence's length, a packed one does not.
  __device__ int rows_end(const AttentionParams& a) const {
    return (a.cu_q ? sequence.len_q : a.len_q) * (packs_heads(C) ? a.group : 1);
  }
  __device__ int head_k(const AttentionParams& a) const { return packs_heads(C) || a.group == 1 ? h : h / a.group; }

  // Whether a value tile may contain hidden rows that are not zero. TMA fills rows beyond the end of the tensor with
  // zeros.
  __device__ bool has_hidden_values(const AttentionParams& a, int tile) const {
    const int first = tile * C.tile_k;
    const int64 rows = a.cu_k ? a.total_k : a.len_k;
    return first < seen_begin || (first + C.tile_k > seen_end && sequence.k_begin + seen_end < rows);
  }
};

// Called by the producer: writes the TileInfo of one of the consumer warpgroups that share the tile.
template <auto C>
__device__ __forceinline__ void write_tile_info(TileInfo& info, const AttentionParams& a, const WorkTile<C>& work,
                                                int group) {
  info.rows_end = work.exists ? work.rows_end(a) : 0;
  if (!work.exists) return;
  const Sequence& s = work.sequence;
  info.b = work.b, info.h = work.h, info.q_first = work.q_first + group * kWarpgroupRows;
  info.q_begin = static_cast<int>(s.q_begin), info.shift = static_cast<int>(s.shift);
  info.len_q = s.len_q, info.len_k = s.len_k;
  info.begin = work.begin, info.end = work.end;
  if (ends_with_full_tile(C) && info.q_first < 0) {
    info.rows_end = kIdleWarpgroup, info.warpgroup_begin = info.full_begin = info.full_end = info.warpgroup_end = 0;
    return;
  }
  compiler_fence();  // reads the fields back, so that they occupy no registers
  Range queries{info.q_first, min(info.q_first + kWarpgroupRows, info.len_q)};
  if constexpr (packs_heads(C)) queries = queries_of_rows(info.sequence(), a.group, info.q_first, kWarpgroupRows);
  const VisitedTiles visited = visited_key_tiles<C.tile_k>(a, info.sequence(), queries);
  if constexpr (splits_keys(C)) {
    const auto kept = [&](int tile) { return max(work.begin, min(tile, work.end)); };
    static_cast<SplitTileInfo&>(info).split = work.split;
    info.warpgroup_begin = kept(visited.begin), info.warpgroup_end = kept(visited.end);
    if constexpr (reads_mask(C)) {  // listed tiles have different numbers, and any of them may be full
      info.full_begin = visited.full_begin, info.full_end = visited.full_end;
    } else {
      info.full_begin = kept(visited.full_begin), info.full_end = kept(visited.full_end);
    }
  } else {
    info.warpgroup_begin = visited.begin, info.full_begin = visited.full_begin;
    info.full_end = visited.full_end, info.warpgroup_end = visited.end;
    if constexpr (halves_first_tile(C)) {
      const int64 seen_end = keys_of_any(a, info.sequence(), queries).end;
      if (visited.count() > 0 && seen_end <= visited.end * C.tile_k - C.tile_k / 2) info.warpgroup_end += kHalfTile;
    }
  }
}

}  // namespace cuflash
