// Rows that a call appends to a cache. No other sequence may append to or read them, because the tasks of a call run in
// any order.
#pragma once

#include "problem/problem.h"
#include "problem/visibility.h"

namespace cuflash {

// Rows of a sequence's cache that the call uses: those that its queries see, and those that it appends.
struct UsedRows {
  Range seen, appended;

  // The two ranges are adjacent or overlap: the last query sees the last row.
  Range all() const {
    if (seen.empty()) return appended;
    return appended.empty() ? seen : Range{std::min(seen.begin, appended.begin), std::max(seen.end, appended.end)};
  }
};
UsedRows used_rows(const CacheProblem& p, int64_t b);

// The columns of the block table whose pages hold these rows.
inline Range columns_of(const CachedKeys& cache, Range rows) {
  if (rows.empty()) return {0, 0};
  // Rows fit into 32 bits, and a 64-bit division takes twice as long.
  const auto size = static_cast<uint32_t>(cache.page_size);
  return {static_cast<uint32_t>(rows.begin) / size, static_cast<uint32_t>(rows.end - 1) / size + 1};
}

// Require entries or pages in host memory that are in range. The cost is sorting or hashing what is appended to, plus
// one lookup for each block-table entry that the call uses.
void require_entries_disjoint(const CacheProblem& p);
void require_pages_disjoint(const CacheProblem& p);

}  // namespace cuflash
