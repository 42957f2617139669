// Rows that a call appends to a cache: no other sequence may append them too, or read them, since the calls' tasks run in
// any order.
#pragma once

#include "problem/problem.h"
#include "problem/visibility.h"

namespace cuflash {

// Rows of a sequence's cache that the call uses: those that a query sees, and those that it appends.
struct UsedRows {
  Range seen, appended;

  // No other row is between the two: the last query sees the last row.
  Range all() const {
    if (seen.empty()) return appended;
    return appended.empty() ? seen : Range{std::min(seen.begin, appended.begin), std::max(seen.end, appended.end)};
  }
};
UsedRows used_rows(const CacheProblem& p, int64_t b);

// The columns of the block table that hold the pages of these rows.
inline Range columns_of(const CachedKeys& cache, Range rows) {
  if (rows.empty()) return {0, 0};
  const auto size =
      static_cast<uint32_t>(cache.page_size);  // rows are int32: a division of 64 bits takes twice the time
  return {static_cast<uint32_t>(rows.begin) / size, static_cast<uint32_t>(rows.end - 1) / size + 1};
}

// Entries, or pages, in host memory and in range. Time is that of sorting what is appended to, and of one look at each
// entry of the block table that the call uses.
void require_entries_disjoint(const CacheProblem& p);
void require_pages_disjoint(const CacheProblem& p);

}  // namespace cuflash
