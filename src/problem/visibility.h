// Which keys a query sees by lengths, causal and window: the geometry that kernels, tile schedules and statistics
// share. The mask tensor is not part of it: its summary says what it shows of a tile (mask_summary.h).
#pragma once

#include <algorithm>

#include "attn/visibility.h"
#include "problem/problem.h"

namespace cuflash {

struct Range {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
  int64_t size() const { return empty() ? 0 : end - begin; }
  bool contains(const Range& other) const { return begin <= other.begin && other.end <= end; }
};

// The queries of rows, which are the same unless Problem::head_rows says otherwise. Rows of two heads may be any.
inline Range queries_of_rows(const Problem& p, Range rows) {
  if (p.head_rows == 0) return rows;
  const int64_t first = rows.begin % p.head_rows, end = first + rows.size();
  return end <= p.head_rows ? Range{first, end} : Range{0, p.head_rows};
}

// Keys visible to the query of a row.
inline Range keys_of_query(const Problem& p, const Sequence& s, int64_t row) {
  return keys_seen_by<Range>(p, s, p.head_rows ? row % p.head_rows : row);
}

// Keys that at least one of the queries sees. Both ends of a query's range increase with the query.
inline Range keys_of_queries(const Problem& p, const Sequence& s, Range rows) {
  return keys_seen_by_any(p, s, queries_of_rows(p, rows));
}

// Keys that every one of the queries sees.
inline Range keys_of_all_queries(const Problem& p, const Sequence& s, Range rows) {
  return keys_seen_by_all(p, s, queries_of_rows(p, rows));
}

// Queries that may see at least one of the keys.
inline Range queries_of_keys(const Problem& p, const Sequence& s, Range keys) {
  return queries_that_see_any(p, s, keys);
}

enum class TileKind { skipped, masked, full };

inline TileKind tile_kind(const Problem& p, const Sequence& s, Range queries, Range keys) {
  const Range any = keys_of_queries(p, s, queries);
  if (std::max(any.begin, keys.begin) >= std::min(any.end, keys.end)) return TileKind::skipped;
  return keys_of_all_queries(p, s, queries).contains(keys) ? TileKind::full : TileKind::masked;
}

// The kind of a tile by positions and by what the mask tensor shows of it. A tile is skipped if either hides all of its
// pairs.
inline TileKind tile_kind(const Problem& p, const Sequence& s, Range queries, Range keys, MaskVisibility mask) {
  const TileKind kind = mask == MaskVisibility::none ? TileKind::skipped : tile_kind(p, s, queries, keys);
  return kind == TileKind::full && mask != MaskVisibility::all ? TileKind::masked : kind;
}

}  // namespace cuflash
