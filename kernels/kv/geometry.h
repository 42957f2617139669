// Geometry of the kv kernels, used in the prologue and by the loads: which rows and keys a CTA has, and where the row
// of a key is stored. It is pure index arithmetic, which the device runs and the host tests.
//
// A work item is (sequence, key/value head, row tile, split). A row is a pair of a query and a head of the group that
// shares keys: row = query * group + head. The keys that some row of the tile sees are cut into splits at multiples of
// the key tile. The cuts depend on the tile's own key range only, never on the rest of the batch. Splits take key tiles
// round-robin, so the first tile of a split does not depend on the length and can be loaded before the length is known.
//
// The last splits of a sequence may be short ones with adjacent key tiles. They are also the last work items: CTAs do
// not run equally fast, and those that finish their long items early fill the remaining time with short ones.
#pragma once

#include "attn/visibility.h"
#include "kv_params.h"

namespace cuflash {

template <class Int>
CUFLASH_SHARED_FUNCTION Int bounded(Int x, Int low, Int high) {
  const Int below = x < high ? x : high;
  return below > low ? below : low;
}
// A division on the critical path of the first loads. Its divisor is often 1, which needs no division.
template <class Int>
CUFLASH_SHARED_FUNCTION Int divide_unless_one(Int a, int b) {
  return b == 1 ? a : a / static_cast<Int>(b);
}

// factor * d exceeds 2^shift by at most d, which is at most 2^(shift - 31): too little to change the quotient of a
// number below 2^31 (Granlund and Montgomery, 1994).
CUFLASH_SHARED_FUNCTION Divisor divisor(unsigned d) {
  int bits = 0;
  while (uint64{1} << bits < d) ++bits;
  return {static_cast<unsigned>((uint64{1} << (31 + bits)) / d + 1), 31 + bits};
}
CUFLASH_SHARED_FUNCTION unsigned divided(unsigned n, Divisor d) {
  return static_cast<unsigned>(uint64{n} * d.factor >> d.shift);
}

// The query of a row >= 0. A tile usually has one query of all heads of a group.
CUFLASH_SHARED_FUNCTION int query_of_row(int row, int group) {
  return row < group ? 0 : static_cast<int>(divide_unless_one(static_cast<unsigned>(row), group));
}

struct WorkItem {
  int b, head_k, row_tile, split;
};
CUFLASH_SHARED_FUNCTION bool has_work_item(const KvParams& p, int64 n) {
  return n < int64{p.attention.batch} * p.attention.heads_k * p.row_tiles * p.splits;
}
// The split is the slowest index. Row tiles that read the same keys are adjacent, and so are heads with adjacent keys:
// DRAM bandwidth is highest when its pages are read completely at one time.
template <class Int>
CUFLASH_SHARED_FUNCTION WorkItem work_item(int batch, int heads_k, int row_tiles, Int n) {
  const auto rest = [](Int a, Int quotient, int b) { return static_cast<int>(a - quotient * static_cast<Int>(b)); };
  const Int head = divide_unless_one(n, row_tiles), range = divide_unless_one(head, heads_k),
            split = divide_unless_one(range, batch);
  return {rest(range, split, batch), rest(head, range, heads_k), rest(n, head, row_tiles), static_cast<int>(split)};
}
// The work item of a CTA in a three-dimensional grid, in the same order: x = row tiles and heads, y = sequences, z =
// splits.
CUFLASH_SHARED_FUNCTION WorkItem work_item(const PrologueLoads& f, unsigned x, unsigned y, unsigned z) {
  const unsigned head = divided(x, f.by_row_tiles);
  return {static_cast<int>(y), static_cast<int>(head), static_cast<int>(x) - static_cast<int>(head) * f.row_tiles,
          static_cast<int>(z)};
}
CUFLASH_SHARED_FUNCTION WorkItem work_item(const KvParams& p, int64 n) {
  const int batch = p.attention.batch, heads_k = p.attention.heads_k;
  return n >> 32 == 0 ? work_item(batch, heads_k, p.row_tiles, static_cast<unsigned>(n))
                      : work_item(batch, heads_k, p.row_tiles, static_cast<uint64>(n));
}
CUFLASH_SHARED_FUNCTION int64 item_number(const KvParams& p, const WorkItem& item) {
  const int64 range = int64{item.split} * p.attention.batch + item.b;
  return (range * p.attention.heads_k + item.head_k) * p.row_tiles + item.row_tile;
}
CUFLASH_SHARED_FUNCTION int64 tile_number(const KvParams& p, const WorkItem& item) {
  return (int64{item.b} * p.attention.heads_k + item.head_k) * p.row_tiles + item.row_tile;
}

// A sequence and its rows of the cache after the append. Key j is row pad + j; rows from old_end on are new.
struct CachedSequence {
  int64 q_begin;
  int len_q, len_k;
  int64 shift;  // query i is at the position of key i + shift
  int pad, old_end;
  int64 new_begin;  // row of k_new
  int new_count;
};
// Lengths come unchecked from the caller's device memory, so they are clamped to the tensors. rows: the sequence's rows
// in the cache. The caller loads it as early as possible, since everything waits for it. kFastDecode: as in KvConfig.
template <bool kFastDecode = false>
CUFLASH_SHARED_FUNCTION CachedSequence cached_sequence(const KvParams& p, int b, int rows) {
  const AttentionParams& a = p.attention;
  const CacheView& c = p.cache;
  CachedSequence s{};
  s.len_q = a.len_q;
  const int room = c.entries > 0 ? a.len_k : 0;
  s.old_end = bounded(rows, 0, room);
  if constexpr (kFastDecode) {
    s.len_k = s.old_end;
    s.shift = int64{s.len_k} - s.len_q;
    return s;
  }
  if (a.cu_q) {
    s.q_begin = bounded<int64>(a.cu_q[b], 0, a.total_q);
    s.len_q = static_cast<int>(bounded<int64>(bounded<int64>(a.cu_q[b + 1], 0, a.total_q) - s.q_begin, 0, a.len_q));
  }
  if (a.used_q) s.len_q = bounded(a.used_q[b], 0, a.len_q);

  s.new_count = c.len_new;
  if (c.cu_new) {
    s.new_begin = bounded<int64>(c.cu_new[b], 0, c.total_new);
    s.new_count =
        static_cast<int>(bounded<int64>(bounded<int64>(c.cu_new[b + 1], 0, c.total_new) - s.new_begin, 0, c.len_new));
  }
  if (c.used_new) s.new_count = bounded(c.used_new[b], 0, c.len_new);

  s.new_count = bounded(s.new_count, 0, room - s.old_end);
  s.pad = c.leftpad ? bounded(c.leftpad[b], 0, s.old_end) : 0;
  s.len_k = s.old_end + s.new_count - s.pad;
  s.shift = int64{s.len_k} - s.len_q;
  return s;
}
CUFLASH_SHARED_FUNCTION CachedSequence cached_sequence(const KvParams& p, int b) {
  return cached_sequence(p, b, p.cache.rows[b]);
}

struct KeyRange {
  int begin, end;
};
CUFLASH_SHARED_FUNCTION KeyRange keys_of_query(const AttentionParams& a, const CachedSequence& s, int64 i) {
  return {static_cast<int>(bounded<int64>(first_key(a, s, i), 0, s.len_k)),
          static_cast<int>(bounded<int64>(end_key(a, s, i), 0, s.len_k))};
}

// Rows [first, end) of a tile, excluding rows whose query does not exist.
struct RowRange {
  int first, end;
};
CUFLASH_SHARED_FUNCTION RowRange rows_of_tile(const AttentionParams& a, const CachedSequence& s, int row_tile,
                                              int tile_q) {
  const int first = row_tile * tile_q;
  return {first, static_cast<int>(bounded<int64>(int64{first} + tile_q, 0, int64{s.len_q} * a.group))};
}
// The epilogue writes rows below this. A dense tensor has rows beyond its lengths, a packed one does not.
CUFLASH_SHARED_FUNCTION int rows_end(const AttentionParams& a, const CachedSequence& s) {
  return (a.cu_q ? s.len_q : a.len_q) * a.group;
}

// Keys that at least one row of the tile sees, and keys that all of them see. Both ends of a query's key range are
// non-decreasing in the query.
struct SeenKeys {
  KeyRange any, all;
};
CUFLASH_SHARED_FUNCTION SeenKeys keys_of_rows(const AttentionParams& a, const CachedSequence& s, RowRange rows) {
  if (rows.first >= rows.end) return {{0, 0}, {0, 0}};
  // A tile with all rows of the sequence needs no division.
  const bool all = rows.first == 0 && rows.end == s.len_q * a.group;
  const KeyRange first = keys_of_query(a, s, all ? 0 : query_of_row(rows.first, a.group)),
                 last = keys_of_query(a, s, all ? s.len_q - 1 : query_of_row(rows.end - 1, a.group));
  return {{first.begin, last.end}, {last.begin, first.end}};
}

struct TileRange {
  int begin, end;
};
CUFLASH_SHARED_FUNCTION TileRange key_tiles(KeyRange keys, int tile_k) {
  if (keys.begin >= keys.end) return {0, 0};
  return {keys.begin / tile_k, (keys.end - 1) / tile_k + 1};
}
// How many splits have keys. CTAs of the other splits exit. A row tile that sees no key has one split, which writes
// empty rows. Short splits have kShortTiles key tiles each, and together at most a quarter of all tiles.
constexpr int kLongTiles = 64, kShortTiles = 8;
struct UsedSplits {
  int long_splits, short_splits;
};
CUFLASH_SHARED_FUNCTION UsedSplits used_splits(const KvParams& p, TileRange tiles) {
  const auto count = static_cast<unsigned>(tiles.end - tiles.begin);
  const int by_min_tiles = static_cast<int>(divide_unless_one(count, p.min_tiles_per_split)),
            by_length = static_cast<int>(count / kLongTiles);
  const int base = by_min_tiles < p.base_splits ? by_min_tiles : p.base_splits;
  return {bounded(base > by_length ? base : by_length, 1, p.splits - p.short_splits),
          bounded(static_cast<int>(count / (4 * kShortTiles)), 0, p.short_splits)};
}
// If the tiles do not divide evenly, the first splits have one tile more than the others.
struct SplitTiles {
  int first, step, count;
};
CUFLASH_SHARED_FUNCTION SplitTiles tiles_of_split(TileRange tiles, UsedSplits used, int split) {
  const int end = tiles.end - used.short_splits * kShortTiles;  // end of the long splits
  if (split >= used.long_splits) return {end + (split - used.long_splits) * kShortTiles, 1, kShortTiles};
  const int count = end - tiles.begin;
  const int each = static_cast<int>(divide_unless_one(static_cast<unsigned>(count), used.long_splits));
  const int more = count - each * used.long_splits;
  return {tiles.begin + split, used.long_splits, each + (split < more ? 1 : 0)};
}

// Where the row of a key begins in K and in V: elements from the start of its key/value head in entry 0.
struct KeyOffsets {
  int64 k, v;
};
constexpr int64 kNoRow = -1;   // no row of the tile sees the key: zeros, nothing is read
constexpr int64 kNewRow = -2;  // the row is in k_new and v_new

// The entry or page that holds row r of sequence b, and the row inside it. Entries of a block table are clamped to the
// pages that exist.
struct EntryRow {
  int64 entry;
  int row;
};
CUFLASH_SHARED_FUNCTION EntryRow entry_row(const CacheView& c, int b, int r) {
  int64 entry = c.entry ? c.entry[b] : b;
  int row = r;
  if (c.page_size) {
    const unsigned column = static_cast<unsigned>(r) / static_cast<unsigned>(c.page_size);
    entry = c.table[b * c.table_stride + column];
    row = r - static_cast<int>(column) * c.page_size;
  }
  return {bounded<int64>(entry, 0, c.entries - 1), row};
}
// The entry or page of a TMA box that begins with row r. r may lie beyond the last row, in a box that no query sees.
CUFLASH_SHARED_FUNCTION EntryRow entry_row(const PrologueLoads& f, int b, int r) {
  if (f.page_size == 0) return {b, r};
  const int row = bounded(r, 0, f.last_row);
  const unsigned column = divided(static_cast<unsigned>(row), f.by_page_size);
  return {bounded(f.table[b * f.table_stride + column], 0, f.last_entry), row - static_cast<int>(column) * f.page_size};
}
CUFLASH_SHARED_FUNCTION KeyOffsets offsets_of_row(const KvParams& p, int b, int r) {
  const EntryRow from = entry_row(p.cache, b, r);
  const AttentionParams& a = p.attention;
  return {from.entry * a.k.batch_stride + from.row * a.k.row_stride,
          from.entry * a.v.batch_stride + from.row * a.v.row_stride};
}
CUFLASH_SHARED_FUNCTION KeyOffsets offsets_of_key(const KvParams& p, const CachedSequence& s, int b, KeyRange seen,
                                                  int j) {
  if (j < seen.begin || j >= seen.end) return {kNoRow, kNoRow};
  if (s.pad + j >= s.old_end) return {kNewRow, kNewRow};
  return offsets_of_row(p, b, s.pad + j);
}

// The rotary partner of element d of a row.
struct RotaryPair {
  int other;   // the other element of the pair
  int column;  // column of cos and sin
  bool second;
};
CUFLASH_SHARED_FUNCTION RotaryPair rotary_pair(const RotaryView& r, int d) {
  if (r.interleaved) return {d ^ 1, d / 2, d % 2 == 1};
  const int half = r.dim / 2;
  return d < half ? RotaryPair{d + half, d, false} : RotaryPair{d - half, d - half, true};
}
CUFLASH_SHARED_FUNCTION int64 query_position(const RotaryView& r, const CachedSequence& s, int query) {
  return bounded<int64>(s.shift + (r.one_position ? 0 : query), 0, r.positions - 1);
}
CUFLASH_SHARED_FUNCTION int64 new_row_position(const RotaryView& r, const CachedSequence& s, int n) {
  return bounded<int64>(int64{s.old_end} + n - s.pad, 0, r.positions - 1);
}

}  // namespace cuflash
