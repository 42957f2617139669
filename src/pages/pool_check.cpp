// Statistics of a pool, and the check that its parts agree.
#include <algorithm>
#include <utility>

#include "error.h"
#include "pages/pool.h"

namespace cuflash::cache {
namespace {

template <class... Parts>
void ensure(bool holds, const Parts&... parts) {
  if (!holds) throw FlashAttentionError(CUFLASH_INTERNAL, join("page pool: ", parts...));
}

}  // namespace

// A partly filled page wastes the tokens after its longest holder, but only if every holder ends inside the page: a
// sequence that fills it uses all of it.
int64_t Pool::count_wasted() const {
  std::vector<std::pair<int32_t, int64_t>> ends;  // page, tokens in it
  for (const Row& row : rows_)
    if (row.serial != 0 && row.tokens % page_size_ != 0)
      ends.emplace_back(table(row)[row.pages - 1], row.tokens % page_size_);
  std::sort(ends.begin(), ends.end());
  int64_t wasted = 0;
  for (size_t n = 0; n < ends.size();) {
    const size_t first = n;
    while (n < ends.size() && ends[n].first == ends[first].first) ++n;
    if (static_cast<int64_t>(n - first) == pages_.holders(ends[first].first)) wasted += page_size_ - ends[n - 1].second;
  }
  return wasted;
}

cuflash_page_pool_stats Pool::statistics() const {
  cuflash_page_pool_stats stats{};
  stats.pages = pages_.count();
  stats.free_pages = pages_.free_count();
  stats.used_pages = stats.pages - stats.free_pages;
  stats.shared_pages = pages_.shared_count();
  for (const Row& row : rows_) {
    stats.sequences += row.serial != 0;
    stats.table_entries += row.pages;
    stats.tokens += row.tokens;
  }
  stats.wasted_tokens = count_wasted();
  return stats;
}

void Pool::check_row(const Row& row) const {
  const int64_t slot = slot_of(row);
  ensure(row.tokens >= 0 && row.pages == pages_for(row.tokens) && row.pages <= max_pages_, "sequence in slot ", slot,
         " has ", row.pages, " pages for ", row.tokens, " tokens");
  ensure(row.sinks >= 0 && row.sinks <= row.tokens && row.sinks % page_size_ == 0 && row.dropped >= 0 &&
             row.dropped % page_size_ == 0 && (row.dropped > 0 || row.sinks == 0),
         "sequence in slot ", slot, " has a gap of ", row.dropped, " tokens behind ", row.sinks);
  std::vector<int32_t> sorted(pages(row).begin(), pages(row).end());
  std::sort(sorted.begin(), sorted.end());
  ensure(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "sequence in slot ", slot,
         " has a page twice");
  ensure(sorted.empty() || (sorted.front() >= 0 && sorted.back() < pages_.count()), "sequence in slot ", slot,
         " has a page that does not exist");
}

void Pool::check_free_rows() const {
  std::vector<bool> is_free(rows_.size());
  for (const int32_t slot : free_rows_) {
    ensure(slot >= 0 && slot < static_cast<int64_t>(rows_.size()) && !is_free[static_cast<size_t>(slot)], "slot ", slot,
           " is free twice, or does not exist");
    is_free[static_cast<size_t>(slot)] = true;
  }
  for (const Row& row : rows_)
    ensure((row.serial == 0) == is_free[static_cast<size_t>(slot_of(row))], "slot ", slot_of(row),
           " is lost, or both free and used");
}

void Pool::check_holders() const {
  std::vector<int32_t> holders(static_cast<size_t>(pages_.count()));
  for (const Row& row : rows_)
    for (const int32_t page : pages(row)) ++holders[static_cast<size_t>(page)];
  int64_t shared = 0;
  for (size_t page = 0; page < holders.size(); ++page) {
    const int32_t counted = pages_.holders(static_cast<int32_t>(page));
    ensure(counted == holders[page], "page ", page, " is held by ", holders[page], " sequences and counts ", counted);
    shared += holders[page] > 1;
  }
  ensure(shared == pages_.shared_count(), shared, " pages are shared, ", pages_.shared_count(), " are counted");
}

void Pool::check_free_pages() const {
  std::vector<bool> is_free(static_cast<size_t>(pages_.count()));
  for (const int32_t page : pages_.free()) {
    ensure(page >= 0 && page < pages_.count() && !is_free[static_cast<size_t>(page)], "page ", page,
           " is free twice, or does not exist");
    is_free[static_cast<size_t>(page)] = true;
  }
  for (int32_t page = 0; page < pages_.count(); ++page)
    ensure((pages_.holders(page) == 0) == is_free[static_cast<size_t>(page)], "page ", page,
           " is lost, or both free and held");
}

void Pool::check() const {
  for (const Row& row : rows_) check_row(row);
  check_free_rows();
  check_holders();
  check_free_pages();
}

}  // namespace cuflash::cache
