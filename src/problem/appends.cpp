#include "problem/appends.h"

#include <algorithm>
#include <tuple>

#include "error.h"
#include "problem/snapshot.h"

namespace cuflash {

static Range appended_rows(const CachedKeys& cache, int64_t b) {
  const AppendedRows append = append_of(cache, b);
  return {append.to, append.to + append.count};
}

UsedRows used_rows(const CacheProblem& p, int64_t b) {
  const Sequence seq = sequence_of(p, b);
  UsedRows used{{0, 0}, appended_rows(p.cache, b)};
  if (seq.len_q == 0) return used;
  const Range keys = keys_of_queries(p, seq, {0, seq.len_q});
  if (!keys.empty()) used.seen = {seq.k_begin + keys.begin, seq.k_begin + keys.end};
  return used;
}

namespace {

struct Entry {
  int32_t entry, sequence;

  bool operator<(const Entry& other) const { return std::tie(entry, sequence) < std::tie(other.entry, other.sequence); }
};

// Rows [begin, end) of a page, which column `column` of the sequence's block table names.
struct PageRows {
  int32_t page, begin, end, sequence, column;

  bool operator<(const PageRows& other) const {
    return std::tie(page, begin, sequence, column) < std::tie(other.page, other.begin, other.sequence, other.column);
  }
  bool meets(const PageRows& other) const { return page == other.page && begin < other.end && other.begin < end; }
  bool same_entry(const PageRows& other) const { return sequence == other.sequence && column == other.column; }
};

// The part of these rows of sequence b that lies in this column.
PageRows rows_in(const CachedKeys& cache, int64_t b, int64_t column, Range rows) {
  const int64_t first = column * cache.page_size;
  return {*cache.pages(b, column), static_cast<int32_t>(std::max<int64_t>(rows.begin - first, 0)),
          static_cast<int32_t>(std::min(rows.end - first, cache.page_size)), static_cast<int32_t>(b),
          static_cast<int32_t>(column)};
}

std::string entry_text(const PageRows& rows) { return join("[", rows.sequence, ", ", rows.column, "]"); }

[[noreturn]] void reject_page(const PageRows& first, const PageRows& second, const std::string& why) {
  reject("block_table: entries ", entry_text(first), " and ", entry_text(second), " are both page ", first.page, ", ",
         why, "; append to pages that no other sequence holds");
}

// The appended rows, indexed by page. A hash table serves the usual case, in which each page occurs once. If sequences
// share a page, the rows are sorted instead, which takes longer.
class AppendedPages {
 public:
  explicit AppendedPages(const CacheProblem& p) : cache_(p.cache) {
    int64_t count = 0;
    for (int64_t b = 0; b < p.batch; ++b) count += columns_of(cache_, appended_rows(cache_, b)).size();
    begin_ = end_ = memory_.take<PageRows>(count);
    for (int64_t b = 0; b < p.batch; ++b) {
      const Range rows = appended_rows(cache_, b), columns = columns_of(cache_, rows);
      for (int64_t column = columns.begin; column < columns.end; ++column) *end_++ = rows_in(cache_, b, column, rows);
    }
    while ((int64_t{1} << bits_) < kSlotsOfAPage * count) ++bits_;
    slots_ = memory_.take<int32_t>(int64_t{1} << bits_);
    hashed_ = fill_slots();
    if (!hashed_) std::sort(begin_, end_);
  }

  bool empty() const { return begin_ == end_; }

  void require_disjoint() const {
    if (hashed_) return;
    for (const PageRows* rows = begin_; rows + 1 < end_; ++rows)
      if (rows[0].meets(rows[1]))
        reject_page(rows[0], rows[1], join("and new rows of both would be written to its row ", rows[1].begin));
  }

  // Requires that these rows, which sequence b reads, are not appended by another sequence.
  void require_disjoint(int64_t b, Range rows) const {
    const Range columns = columns_of(cache_, rows);
    const int32_t* pages = cache_.pages(b, columns.begin);
    for (int64_t n = 0; n < columns.size(); ++n) {
      const PageRows* found = hashed_ ? hashed(pages[n]) : end_;
      if (hashed_ && !found) continue;
      const PageRows seen = rows_in(cache_, b, columns.begin + n, rows);
      require_disjoint(hashed_ ? found : sorted(seen.page, seen.begin), seen);
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  // Most lookups miss, and a sparse table makes that branch predictable.
  static constexpr int64_t kSlotsOfAPage = 16;

  // Fibonacci hashing, because pages of different sequences are often a power of two apart.
  size_t slot_of(int32_t page) const {
    return static_cast<size_t>((static_cast<uint64_t>(page) * 0x9e3779b97f4a7c15u) >> (64 - bits_));
  }
  size_t next(size_t slot) const { return (slot + 1) & ((size_t{1} << bits_) - 1); }

  // Returns false if a page occurs twice, or if a run of occupied slots gets this long.
  bool fill_slots() {
    constexpr int kMaxSteps = 64;
    std::fill_n(slots_, int64_t{1} << bits_, kNone);
    for (const PageRows* rows = begin_; rows != end_; ++rows) {
      size_t slot = slot_of(rows->page);
      for (int steps = 0; slots_[slot] != kNone; slot = next(slot), ++steps)
        if (begin_[slots_[slot]].page == rows->page || steps == kMaxSteps) return false;
      slots_[slot] = static_cast<int32_t>(rows - begin_);
    }
    return true;
  }

  // The entry of this page; null if it has none.
  const PageRows* hashed(int32_t page) const {
    for (size_t slot = slot_of(page); slots_[slot] != kNone; slot = next(slot))
      if (begin_[slots_[slot]].page == page) return begin_ + slots_[slot];
    return nullptr;
  }
  // The first entry that may overlap rows [row, ...) of this page.
  const PageRows* sorted(int32_t page, int32_t row) const {
    const PageRows* rows = std::upper_bound(begin_, end_, PageRows{page, row, 0, 0, 0});
    return rows != begin_ && rows[-1].page == page ? rows - 1 : rows;
  }

  void require_disjoint(const PageRows* appended, const PageRows& seen) const {
    for (; appended != end_ && appended->page == seen.page && appended->begin < seen.end; ++appended)
      if (appended->meets(seen) && !appended->same_entry(seen))
        reject_page(*appended, seen,
                    join("and sequence ", appended->sequence, " appends to its row ",
                         std::max(appended->begin, seen.begin), ", which sequence ", seen.sequence, " reads"));
  }

  const CachedKeys& cache_;
  Snapshot memory_;
  PageRows *begin_, *end_;
  int32_t* slots_;  // [2^bits_], index into the rows
  int bits_ = 1;
  bool hashed_;
};

}  // namespace

void require_entries_disjoint(const CacheProblem& p) {
  Snapshot memory;
  auto* entries = memory.take<Entry>(p.batch);
  for (int64_t b = 0; b < p.batch; ++b) entries[b] = {p.cache.entry[b], static_cast<int32_t>(b)};
  if (!std::is_sorted(entries, entries + p.batch)) std::sort(entries, entries + p.batch);
  const auto appends = [&](const Entry& e) { return append_of(p.cache, e.sequence).count > 0; };
  for (const Entry *first = entries, *e = entries, *end = entries + p.batch; e != end; ++e) {
    if (e->entry != first->entry) first = e;
    if (e != first && (appends(*first) || appends(*e)))
      reject(
          "batch_idx: entries ", first->sequence, " and ", e->sequence, " are both ", e->entry,
          ", so rows appended for one would overwrite the other; give each sequence that appends an entry of its own");
  }
}

void require_pages_disjoint(const CacheProblem& p) {
  const AppendedPages appended(p);
  if (appended.empty()) return;
  appended.require_disjoint();
  for (int64_t b = 0; b < p.batch; ++b)
    if (const Range seen = used_rows(p, b).seen; !seen.empty()) appended.require_disjoint(b, seen);
}

}  // namespace cuflash
