// Lists the tiles that a mask tensor shows (sm90/mask_tiles.h), and counts them for the statistics. A warp makes one
// list: each lane classifies a tile by the summary's blocks.
#pragma once

#include "attn/visited_tiles.h"
#include "backward_params.h"
#include "portable/backward/visited_queries.h"
#include "ptx/grid.h"
#include "sm90/forward/mask_aligned_tiling.h"
#include "sm90/mask_tiles.h"
#include "tile/operand.h"

namespace cuflash {

// Blocks of 16 keys that all queries of a row of blocks see by position, as one word for 512 keys. If all queries share
// one row of the mask, it reports all blocks, and callers check positions themselves.
struct VisibleBlocks {
  int64 low, high, rows_end;
  int len_k;
  bool shares_row;

  __device__ VisibleBlocks(const AttentionParams& a, const Sequence& s, const MaskOfHead& m)
      : low(first_key(a, s, kMaskBlock - 1)),
        high(end_key(a, s, 0)),
        rows_end(m.rows <= s.len_q ? m.rows + kMaskBlock : s.len_q),  // the mask may have rows beyond the sequence
        len_k(s.len_k),
        shares_row(m.rows == 1) {}
  __device__ __forceinline__ unsigned of(int row, int span) const {
    if (shares_row) return ~0u;
    const int64 first = int64{row} * kMaskBlock, zero = 0;
    const int64 begin = (max(zero, first + low) + kMaskBlock - 1) / kMaskBlock - 32 * span;
    const int64 end = first + high >= len_k ? 32 : max(zero, first + high) / kMaskBlock - 32 * span;
    const int from = static_cast<int>(clamped(begin, 0, 32)), to = static_cast<int>(clamped(end, 0, 32));
    return from < to && first + kMaskBlock <= rows_end ? mask_block_range(from, to) : 0;
  }
};

// Blocks of some rows in one word of 512 keys.
struct MaskBlocks {
  unsigned any = 0, all = ~0u, covers = 0;

  // Adds the rows of blocks of `queries` queries; rows beyond the tensor do not count.
  __device__ __forceinline__ void add(const MaskOfHead& m, int q_first, int queries, int span) {
    const int rows = (m.rows + kMaskBlock - 1) / kMaskBlock;
    const int begin = m.rows == 1 ? 0 : q_first / kMaskBlock;
    const int end = m.rows == 1 ? 1 : min(rows, (q_first + queries + kMaskBlock - 1) / kMaskBlock);
#pragma unroll 4
    for (int row = begin; row < end; ++row) {
      const unsigned* words = m.blocks + static_cast<int64>(row) * kMaskPlanes * m.spans + span;
      any |= words[0], all &= words[m.spans], covers |= words[2 * m.spans];
    }
  }
  // add() for 64 queries, with all loads in flight. Only queries that see a whole block cover its keys.
  __device__ __forceinline__ void add_group(const MaskOfHead& m, const VisibleBlocks& visible, int q_first, int span) {
    const int rows = (m.rows + kMaskBlock - 1) / kMaskBlock, begin = m.rows == 1 ? 0 : q_first / kMaskBlock;
    if (begin >= rows) return;
#pragma unroll
    for (int n = 0; n < kWarpgroupRows / kMaskBlock; ++n) {
      const int row = min(begin + n, rows - 1);
      const unsigned* words = m.blocks + static_cast<int64>(row) * kMaskPlanes * m.spans + span;
      any |= words[0], all &= words[m.spans], covers |= words[2 * m.spans] & visible.of(row, span);
    }
  }
};
// The bits of keys [k_first, k_first + keys) in the word of a span.
__device__ __forceinline__ unsigned blocks_in_span(int k_first, int keys, int span) {
  const int begin = max(0, k_first / kMaskBlock - 32 * span), end = min(32, (k_first + keys) / kMaskBlock - 32 * span);
  return begin < end ? mask_block_range(begin, end) : 0;
}
// Calls on_span(span, blocks) for the words that contain keys [k_first, k_first + keys).
template <class OnSpan>
__device__ __forceinline__ void for_each_span(const MaskOfHead& m, int k_first, int keys, OnSpan&& on_span) {
#pragma unroll 1
  for (int span = k_first / kMaskSpan; span < m.spans && span * kMaskSpan < k_first + keys; ++span)
    on_span(span, blocks_in_span(k_first, keys, span));
}

// The list that a warp makes: that of one tile of a head, or of a group of heads.
struct MaskListCoord {
  int64 number;
  int b, h, tile;

  __device__ MaskListCoord(const MaskLists& lists, int heads)
      : number(cta_number() * (kMaskListThreads / 32) + static_cast<int>(threadIdx.x) / 32) {
    const int64 head = quotient(number, lists.tiles);
    const int64 count = lists.head_step != 0 ? heads : 1, batch = quotient(head, count);
    tile = static_cast<int>(number - head * lists.tiles);
    b = static_cast<int>(batch), h = static_cast<int>(head - batch * count);
  }
};

// Tiles of one list, for the statistics.
struct MaskTileCounts {
  int64 visited = 0, masked = 0;

  // Called by all lanes of a warp.
  __device__ __forceinline__ void add(bool is_visited, bool is_masked) {
    visited += __popc(__ballot_sync(0xffffffffu, is_visited));
    masked += __popc(__ballot_sync(0xffffffffu, is_visited && is_masked));
  }
  // times: heads and batch entries that share the list. of: number of tiles without a mask.
  __device__ void report(const AttentionParams& a, int64 of, int64 times) const {
    if (a.tile_counts && lane_id() == 0) add_tile_counts(a, times * visited, times * masked, times * (of - visited));
  }
};
__device__ __forceinline__ int64 sharing(const AttentionParams& a, const MaskLists& lists, int heads) {
  return (lists.batch_step != 0 ? 1 : int64{a.batch}) * (lists.head_step != 0 ? 1 : heads);
}

// The first run of tiles in which a warpgroup sees everything, as positions in the list. end: -1 if the list ends with
// the run.
struct FullRun {
  int first = -1, end = -1;

  // listed, full: bit masks of 32 tiles, which are listed from position `count` on.
  __device__ __forceinline__ void add(int count, unsigned listed, unsigned full) {
    const auto position = [&](unsigned tiles) {
      return count + static_cast<int>(__popc(listed & ((tiles & (0u - tiles)) - 1)));
    };
    unsigned others = listed & ~full;
    if (first < 0 && full != 0) first = position(full), others &= ~((full & (0u - full)) - 1);
    if (first >= 0 && end < 0 && others != 0) end = position(others);
  }
};

// The key tiles of a query tile, for the forward kernel and the dQ kernel. kCountsGroups: the tiles of the statistics
// have the 64 queries of a warpgroup.
template <auto C, bool kCountsGroups>
struct KeyTileLister {
  static constexpr int kTileQ = tile_q_of(C), kTileK = C.tile_k;
  static constexpr bool kAscends = !kCountsGroups;  // whether tiles are listed in ascending order

  const AttentionParams& a;
  const MaskLists& lists;
  bool counts;

  // What the mask shows of a key tile, for each consumer warpgroup and in all.
  struct TileVisibility {
    bool any[C.warpgroups], all[C.warpgroups];
    bool covers = true;
    unsigned seen_blocks = 0, covered_blocks = 0;  // one bit per block of 16 keys
  };
  __device__ __forceinline__ static TileVisibility classify(const MaskOfHead& m, const VisibleBlocks& visible,
                                                            int q_first, int groups, int tile) {
    TileVisibility v;
#pragma unroll
    for (int g = 0; g < C.warpgroups; ++g) v.any[g] = false, v.all[g] = true;
    for_each_span(m, tile * kTileK, kTileK, [&](int span, unsigned blocks) {
      unsigned covered = 0, seen_by_some = 0;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g) {
        if (g >= groups) continue;
        MaskBlocks seen;
        seen.add_group(m, visible, q_first + g * kWarpgroupRows, span);
        v.any[g] |= (seen.any & blocks) != 0, v.all[g] &= (~seen.all & blocks) == 0, covered |= seen.covers;
        seen_by_some |= seen.any;
      }
      const int first = 32 * span - tile * kTileK / kMaskBlock;  // block of the word's first bit
      const auto in_tile = [&](unsigned word) {
        return first >= 0 ? (word & blocks) << first : (word & blocks) >> -first;
      };
      v.seen_blocks |= in_tile(seen_by_some), v.covered_blocks |= in_tile(covered);
      v.covers &= (~covered & blocks) == 0;
    });
    return v;
  }
  __device__ static Range rows(const Sequence& s, int first, int count) {
    return {first, min(int64{first} + count, int64{s.len_q})};
  }

  // The rows of a query tile: those of the regular tile with this number, or of one aligned to the mask. All lists of a
  // CTA have the same batch entry.
  __device__ __forceinline__ MaskListRows rows_of_tile(const Sequence& s, const MaskOfHead& mask, int tile) const {
    const int length = a.cu_q ? s.len_q : a.len_q;
    if (lists.aligned == 0) return MaskListRows::of(tile * C.warpgroups, tile * kTileQ < length ? C.warpgroups : 0);
    extern __shared__ __align__(1024) unsigned char memory[];
    const MaskAlignedTiling<C> tiling{a, s, mask, reinterpret_cast<typename MaskAlignedTiling<C>::Group*>(memory),
                                      static_cast<int>(tiles_in(length, kWarpgroupRows))};
    tiling.run();
    return {tile < tiling.count ? tiling.groups[tile].tile : 0};
  }

  __device__ __forceinline__ void run() const {
    const MaskListCoord coord(lists, a.heads_q);
    if (coord.b >= (lists.batch_step != 0 ? a.batch : 1)) return;
    int* list = lists.data + coord.number * lists.stride;
    const Sequence s = sequence_of(a, coord.b);
    const MaskOfHead mask = mask_of_head(a.summary, coord.b, coord.h);
    MaskListRows tile_rows = MaskListRows::of(coord.tile * C.warpgroups, C.warpgroups);
    if constexpr (!kCountsGroups) {
      tile_rows = rows_of_tile(s, mask, coord.tile);
      if (lane_id() == 0) list[kMaskListRows] = static_cast<int>(tile_rows.word);
      if (tile_rows.groups() == 0) {
        if (lane_id() == 0) list[0] = -1;
        return;
      }
    }
    const int q_first = tile_rows.first_row(), num_queries = tile_rows.groups() * kWarpgroupRows;
    const Range queries = rows(s, q_first, num_queries), seen = keys_of_any(a, s, queries),
                all = keys_of_all(a, s, queries);
    const int begin = seen.empty() ? 0 : static_cast<int>(seen.begin / kTileK);
    const int end = seen.empty() ? 0 : static_cast<int>(tiles_in(seen.end, kTileK));
    const int64 value_rows = a.cu_k ? a.total_k : a.len_k;
    const VisibleBlocks visible(a, s, mask);
    int count = 0, first_seen[C.warpgroups], last_seen[C.warpgroups];
    FullRun runs[C.warpgroups];
    MaskTileCounts counted[C.warpgroups];
#pragma unroll
    for (int g = 0; g < C.warpgroups; ++g) first_seen[g] = last_seen[g] = -1;
#pragma unroll 1
    for (int done = 0; done < end - begin; done += 32) {
      const int number = done + lane_id(), tile = kAscends ? begin + number : end - 1 - number, first = tile * kTileK;
      const bool exists = number < end - begin;
      TileVisibility v{};
      if (exists) v = classify(mask, visible, q_first, tile_rows.groups(), tile);
      bool any = false, shows_all = true;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g) any |= v.any[g], shows_all &= v.all[g];
      const unsigned visible = __ballot_sync(0xffffffffu, any);
      const int position = count + static_cast<int>(__popc(visible & ((1u << lane_id()) - 1)));
      const int64 key_end = min(int64{first} + kTileK, seen.end);
      const bool outside = first < seen.begin || (key_end == seen.end && s.k_begin + seen.end < value_rows &&
                                                  int64{first} + kTileK > seen.end);
      const bool covers_count = mask.rows > 1 || (first >= all.begin && key_end <= all.end);
      unsigned word = static_cast<unsigned>(tile);
      if (outside || !(shows_all || (v.covers && covers_count))) word |= ListedMaskTile::kHidesKey;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g) {
        const Range of_group = rows(s, q_first + g * kWarpgroupRows, kWarpgroupRows);
        const VisitedTiles visited = visited_key_tiles<kTileK>(a, s, of_group);
        if (v.all[g]) word |= ListedMaskTile::shows_all_bit(g);
        const bool sees = v.any[g] && tile >= visited.begin && tile < visited.end;
        const unsigned seers = __ballot_sync(0xffffffffu, sees);
        if (seers != 0) {
          if (first_seen[g] < 0) first_seen[g] = __shfl_sync(0xffffffffu, position, __ffs(seers) - 1);
          last_seen[g] = __shfl_sync(0xffffffffu, position, 31 - __clz(seers));
        }
        const bool sees_all = sees && v.all[g] && tile >= visited.full_begin && tile < visited.full_end;
        runs[g].add(count, visible, __ballot_sync(0xffffffffu, sees_all));
        if (counts && kCountsGroups) {
          const Range full = full_key_tiles<kTileK>(a, s, of_group);
          counted[g].add(sees, !v.all[g] || tile < full.begin || tile >= full.end);
        }
      }
      if (counts && !kCountsGroups) {
        const Range full = full_key_tiles<kTileK>(a, s, queries);
        counted[0].add(any, !shows_all || tile < full.begin || tile >= full.end);
      }
      if (any) list[kMaskListHeader + position] = static_cast<int>(word);
      if (any && lists.blocks != 0)
        list[lists.blocks + position] = static_cast<int>(
            MaskKeyBlocks::of(v.seen_blocks, shows_all ? 0 : v.seen_blocks & ~(covers_count ? v.covered_blocks : 0))
                .word);
      count += static_cast<int>(__popc(visible));
    }
    if (lane_id() == 0) {
      list[0] = count;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g) {
        list[1 + 2 * g] = first_seen[g] < 0 ? 0 : count - 1 - last_seen[g];
        list[2 + 2 * g] = first_seen[g] < 0 ? 0 : count - first_seen[g];
        list[kMaskListRuns + 2 * g] = runs[g].end < 0 ? 0 : count - runs[g].end;
        list[kMaskListRuns + 1 + 2 * g] = runs[g].first < 0 ? 0 : count - runs[g].first;
      }
    }
    if (!counts) return;
#pragma unroll
    for (int g = 0; g < (kCountsGroups ? C.warpgroups : 1); ++g)
      if (q_first + g * kWarpgroupRows < s.len_q)
        counted[g].report(a, tiles_in(s.len_k, kTileK), sharing(a, lists, a.heads_q));
  }
};

// The query tiles of a key tile, for all query heads that share the keys.
template <Sm90BackwardConfig C>
struct QueryTileLister {
  static constexpr BackwardConfig kPortable = portable_view(C);
  static constexpr int kTileK = tile_k_of(C);

  const AttentionParams& a;
  const MaskLists& lists;

  struct TileVisibility {
    bool any = false, all[C.warpgroups];
    __device__ bool shows_all() const {
      bool every = true;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g) every &= all[g];
      return every;
    }
  };
  __device__ __forceinline__ static TileVisibility classify(const MaskOfHead& m, int k_first, int tile) {
    TileVisibility v;
#pragma unroll
    for (int g = 0; g < C.warpgroups; ++g) v.all[g] = true;
    for_each_span(m, k_first, kTileK, [&](int span, unsigned blocks) {
      MaskBlocks seen;
      seen.add(m, tile * C.tile_q, C.tile_q, span);
      v.any |= (seen.any & blocks) != 0;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g)
        v.all[g] &= (~seen.all & blocks_in_span(k_first + g * kWarpgroupRows, kWarpgroupRows, span)) == 0;
    });
    return v;
  }

  __device__ __forceinline__ void run() const {
    const MaskListCoord coord(lists, a.heads_k);
    if (coord.b >= (lists.batch_step != 0 ? a.batch : 1)) return;
    int* list = lists.data + coord.number * lists.stride;
    const Sequence s = sequence_of(a, coord.b);
    const int k_first = coord.tile * kTileK, heads = lists.head_step != 0 ? a.group : 1;
    const Range keys{k_first, min(int64{k_first} + kTileK, int64{s.len_k})};
    const VisitedTiles visited = visited_query_tiles<kPortable>(a, s, keys, false);
    int count = 0;
    MaskTileCounts counted;
#pragma unroll 1
    for (int first = visited.begin; first < visited.end; first += 32) {
      const int tile = first + lane_id();
      const bool exists = tile < visited.end;
      TileVisibility v;
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g) v.all[g] = true;
#pragma unroll 1
      for (int member = 0; member < heads; ++member) {
        TileVisibility of_head{};
        if (exists) of_head = classify(mask_of_head(a.summary, coord.b, coord.h * heads + member), k_first, tile);
        v.any |= of_head.any;
#pragma unroll
        for (int g = 0; g < C.warpgroups; ++g) v.all[g] &= of_head.all[g];
        if (a.tile_counts)
          counted.add(of_head.any, !of_head.shows_all() || tile < visited.full_begin || tile >= visited.full_end);
      }
      const unsigned visible = __ballot_sync(0xffffffffu, v.any);
      unsigned word = static_cast<unsigned>(tile);
#pragma unroll
      for (int g = 0; g < C.warpgroups; ++g)
        if (v.all[g]) word |= ListedMaskTile::shows_all_bit(g);
      if (v.any) list[kMaskListHeader + count + __popc(visible & ((1u << lane_id()) - 1))] = static_cast<int>(word);
      count += static_cast<int>(__popc(visible));
    }
    if (lane_id() == 0) list[0] = count;
    if (a.tile_counts && !keys.empty())
      counted.report(a, heads * tiles_in(s.len_q, C.tile_q), sharing(a, lists, a.heads_k) * (a.group / heads));
  }
};

// Lets the kernel that lists query tiles start; it waits for the end of this kernel. This kernel waits for the summary.
__device__ __forceinline__ void begin_mask_lists() { griddepcontrol_launch_dependents(), griddepcontrol_wait(); }

template <Sm90ForwardConfig C>
__device__ __forceinline__ void sm90_mask_list(const Sm90ForwardParams& p) {
  begin_mask_lists();
  const AttentionParams& a = p.forward.attention;
  KeyTileLister<C, false>{a, p.mask_lists, a.tile_counts != nullptr}.run();
}
template <Sm90DqConfig C>
__device__ __forceinline__ void sm90_dq_mask_list(const Sm90BackwardParams& p) {
  begin_mask_lists();
  const AttentionParams& a = p.backward.attention;
  KeyTileLister<C, true>{a, p.dq_mask_lists, a.tile_counts != nullptr && p.counts_in_dq != 0}.run();
}
template <Sm90BackwardConfig C>
__device__ __forceinline__ void sm90_backward_mask_list(const Sm90BackwardParams& p) {
  begin_mask_lists();
  QueryTileLister<C>{p.backward.attention, p.backward.mask_lists}.run();
}

}  // namespace cuflash
