#include "pages/block_table.h"

#include <algorithm>
#include <atomic>

#include "error.h"
#include "problem/disjoint.h"
#include "problem/tensor_rules.h"

namespace cuflash::cache {
namespace {

using Sequences = std::span<const cuflash_sequence>;

// Every access reads the list entry once and checks the copy: another thread of the caller may be writing to the list.
cuflash_sequence sequence_at(const Pool& pool, Sequences sequences, size_t n) {
  const cuflash_sequence sequence = sequences[n];
  std::atomic_signal_fence(std::memory_order_acq_rel);
  if (!pool.has(sequence)) pool.require(join("sequences[", n, "]").c_str(), sequence);
  return sequence;
}

std::span<const int32_t> pages_at(const Pool& pool, Sequences sequences, size_t n, int64_t columns) {
  const std::span<const int32_t> pages = pool.pages(sequence_at(pool, sequences, n));
  if (static_cast<int64_t>(pages.size()) > columns)
    reject("block_table: has ", columns, " columns, but sequences[", n, "] has ", pages.size(),
           " pages; give it at least that many columns");
  return pages;
}

// Checks the output before reading the list: a count that does not match the tensor cannot be trusted.
void require_one_row_each(const Argument& a, int rank, const char* shape, Sequences sequences) {
  require_output(a, rank, shape);
  require_type(a, DType::i32, "the type of pages and lengths");
  require_extent(a, 0, static_cast<int64_t>(sequences.size()), "one row for each sequence");
  const cuflash_tensor list{sequences.data(), CUFLASH_BOOL, 1, {static_cast<int64_t>(sequences.size_bytes())}, {1}};
  require_disjoint(a, {"sequences", list});
}

}  // namespace

void write_block_table(const Pool& pool, Sequences sequences, const cuflash_mutable_tensor& block_table,
                       int32_t unused) {
  const Argument a("block_table", block_table);
  require_one_row_each(a, 2, "[B, max_pages]", sequences);
  for (size_t n = 0; n < sequences.size(); ++n) sequence_at(pool, sequences, n);
  const int64_t columns = a.extent(1);
  for (size_t n = 0; n < sequences.size(); ++n) pages_at(pool, sequences, n, columns);
  auto* row = static_cast<int32_t*>(block_table.data);
  for (size_t n = 0; n < sequences.size(); ++n, row += a.step(0)) {
    const std::span<const int32_t> pages = pages_at(pool, sequences, n, columns);
    std::fill(std::copy(pages.begin(), pages.end(), row), row + columns, unused);
  }
}

void write_lengths(const Pool& pool, Sequences sequences, const cuflash_mutable_tensor& cache_seqlens) {
  require_one_row_each(Argument("cache_seqlens", cache_seqlens), 1, "[B]", sequences);
  for (size_t n = 0; n < sequences.size(); ++n) sequence_at(pool, sequences, n);
  auto* length = static_cast<int32_t*>(cache_seqlens.data);
  for (size_t n = 0; n < sequences.size(); ++n)
    *length++ = static_cast<int32_t>(pool.state(sequence_at(pool, sequences, n)).tokens);
}

}  // namespace cuflash::cache
