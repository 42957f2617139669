#include "pages/pool.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <new>

#include "error.h"

namespace cuflash::cache {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

int64_t in_range(const char* name, int64_t value) {
  if (value < 1 || value > kMaxInt32) reject(name, ": got ", value, ", must be between 1 and ", kMaxInt32);
  return value;
}

int64_t max_pages_of(const cuflash_page_pool_config& config) {
  const int64_t pages = in_range("pages", config.pages), page_size = in_range("page_size", config.page_size);
  const int64_t most = kMaxInt32 / page_size;  // lengths are int32
  if (config.max_pages_per_sequence == 0) return std::min(pages, most);
  if (config.max_pages_per_sequence < 0 || config.max_pages_per_sequence > most)
    reject("max_pages_per_sequence: got ", config.max_pages_per_sequence, ", must be between 1 and ", most,
           ", so that the length of a sequence in pages of ", page_size,
           " fits into int32, or 0 for all pages of the pool");
  return config.max_pages_per_sequence;
}

std::unique_ptr<int32_t[]> make_table(int64_t rows, int64_t columns) {
  int64_t bytes = 0;  // rows and columns are below 2^31: only the last product can overflow
  if (!__builtin_mul_overflow(rows * columns, int64_t{sizeof(int32_t)}, &bytes)) {
    std::unique_ptr<int32_t[]> table(new (std::nothrow) int32_t[static_cast<size_t>(rows * columns)]);
    if (table) return table;
  }
  throw FlashAttentionError(CUFLASH_OUT_OF_MEMORY,
                            join("max_sequences: a table of ", rows, " sequences by ", columns,
                                 " pages could not be allocated; lower max_sequences or max_pages_per_sequence"));
}

// All pools share one counter, so a handle identifies one sequence in any pool.
uint64_t next_serial() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Pool::Pool(const cuflash_page_pool_config& config)
    : page_size_(config.page_size),
      max_pages_(max_pages_of(config)),
      pages_(static_cast<int32_t>(config.pages)),
      rows_(static_cast<size_t>(in_range("max_sequences", config.max_sequences))),
      free_rows_(rows_.size()),
      table_(make_table(config.max_sequences, max_pages_)) {
  for (size_t n = 0; n < rows_.size(); ++n) free_rows_[n] = static_cast<int32_t>(rows_.size() - 1 - n);
}

bool Pool::has(cuflash_sequence s) const {
  return s.serial != 0 && s.slot >= 0 && s.slot < static_cast<int64_t>(rows_.size()) &&
         rows_[static_cast<size_t>(s.slot)].serial == s.serial;
}

const Pool::Row& Pool::find(const char* name, cuflash_sequence s) const {
  if (!has(s))
    reject(
        name, ": {serial ", s.serial, ", slot ", s.slot,
        "} is not a sequence of this pool: it was released, belongs to another pool, or is empty because the pool was "
        "full; use one that start or fork returned");
  return rows_[static_cast<size_t>(s.slot)];
}
Pool::Row& Pool::find(const char* name, cuflash_sequence s) {
  return const_cast<Row&>(static_cast<const Pool*>(this)->find(name, s));
}

Pool::Row* Pool::take_row() {
  if (free_rows_.empty()) return nullptr;
  Row& row = rows_[static_cast<size_t>(free_rows_.back())];
  free_rows_.pop_back();
  row = {.serial = next_serial()};
  return &row;
}

// Releases pages from last to first, so that the next append takes the first of them again. Returns how many became
// free.
int64_t Pool::release_pages(const Row& row, int64_t begin, int64_t end) {
  int64_t freed = 0;
  for (int64_t n = end; n-- > begin;) freed += pages_.release(table(row)[n]);
  return freed;
}

// Shortens the row to its first tokens. Cutting before the gap removes the gap.
void Pool::cut(Row& row, int64_t tokens) const {
  row.tokens = static_cast<int32_t>(tokens);
  row.pages = static_cast<int32_t>(pages_for(tokens));
  if (tokens < row.sinks) row.sinks = 0, row.dropped = 0;
}

cuflash_sequence Pool::start() {
  const Row* row = take_row();
  return row ? handle(*row) : cuflash_sequence{};
}

cuflash_sequence Pool::fork(cuflash_sequence parent, int64_t tokens) {
  const Row& from = find("parent", parent);
  if (tokens < -1 || tokens > from.tokens)
    reject("tokens: got ", tokens, ", must be between 0 and ", from.tokens, ", the tokens of parent, or -1 for all");
  Row* row = take_row();
  if (!row) return {};
  const uint64_t serial = row->serial;
  *row = from, row->serial = serial;
  cut(*row, tokens < 0 ? from.tokens : tokens);
  std::copy_n(table(from), row->pages, table(*row));
  for (const int32_t page : pages(*row)) pages_.share(page);
  return handle(*row);
}

// Replaces the last page of the row, which other sequences still read, with a private copy.
cuflash_page_copy Pool::own_last_page(const Row& row) {
  int32_t& last = table(row)[row.pages - 1];
  const cuflash_page_copy copy{last, pages_.take(), static_cast<int32_t>(row.tokens % page_size_)};
  pages_.release(last);
  last = copy.destination;
  return copy;
}

cuflash_append_result Pool::append(cuflash_sequence sequence, int64_t tokens) {
  Row& row = find("sequence", sequence);
  if (tokens < 0) reject("tokens: got ", tokens, ", must be 0 or more; use truncate to remove tokens");
  cuflash_append_result result{};
  // Compare against the remaining room: the length after the append may not fit into 64 bits.
  if (const int64_t beyond = tokens - (max_pages_ * page_size_ - row.tokens); beyond > 0) {
    result.fit = CUFLASH_SEQUENCE_FULL;
    result.missing_pages = (beyond - 1) / page_size_ + 1;
    return result;
  }
  const bool copies = tokens > 0 && row.tokens % page_size_ != 0 && pages_.is_shared(table(row)[row.pages - 1]);
  const int64_t more = pages_for(row.tokens + tokens) - row.pages;
  result.pages = static_cast<int32_t>(more + copies);
  if (more + copies > pages_.free_count()) {
    result.fit = CUFLASH_POOL_FULL;
    result.missing_pages = more + copies - pages_.free_count();
    return result;
  }
  if (copies) result.copy = own_last_page(row);
  for (int64_t n = 0; n < more; ++n) table(row)[row.pages++] = pages_.take();
  row.tokens += static_cast<int32_t>(tokens);
  return result;
}

void Pool::truncate(cuflash_sequence sequence, int64_t tokens) {
  Row& row = find("sequence", sequence);
  if (tokens < 0 || tokens > row.tokens)
    reject("tokens: got ", tokens, ", must be between 0 and ", row.tokens, ", the tokens of the sequence in the cache");
  release_pages(row, pages_for(tokens), row.pages);
  cut(row, tokens);
}

cuflash_trim_result Pool::trim(cuflash_sequence sequence, int64_t sinks, int64_t window) {
  Row& row = find("sequence", sequence);
  if (sinks < 0) reject("sinks: got ", sinks, ", must be 0 or more");
  if (window < 0) reject("window: got ", window, ", must be 0 or more");
  if (row.dropped > 0 && sinks > row.sinks)
    reject("sinks: got ", sinks, ", but an earlier trim kept only the first ", row.sinks,
           " tokens; pass at most that many, or keep more from the first trim on");
  const int64_t position = row.tokens + row.dropped;
  if (sinks >= position || window >= position) return {};
  // The gap, in positions. It only grows; there is never a second one.
  const int64_t begin = pages_for(sinks) * page_size_;
  int64_t end = (position - window) / page_size_ * page_size_;
  if (end <= begin || end < row.sinks) return {};
  if (row.dropped > 0) end = std::max(end, row.sinks + row.dropped);
  const int64_t first = begin / page_size_, last = (end - row.dropped) / page_size_;
  const cuflash_trim_result result{first, last - first, release_pages(row, first, last)};
  std::copy(table(row) + last, table(row) + row.pages, table(row) + first);
  row.pages -= static_cast<int32_t>(result.pages);
  row.tokens -= static_cast<int32_t>(result.pages * page_size_);
  row.dropped = end - begin;
  row.sinks = static_cast<int32_t>(begin);
  return result;
}

void Pool::release(cuflash_sequence sequence) {
  Row& row = find("sequence", sequence);
  release_pages(row, 0, row.pages);
  free_rows_.push_back(static_cast<int32_t>(sequence.slot));  // never allocates: the stack was full once
  row = {};
}

cuflash_sequence_state Pool::state(cuflash_sequence sequence) const {
  const Row& row = find("sequence", sequence);
  return {row.tokens, row.pages, row.sinks, row.dropped, row.tokens + row.dropped};
}

std::span<const int32_t> Pool::pages(cuflash_sequence sequence) const { return pages(find("sequence", sequence)); }

}  // namespace cuflash::cache
