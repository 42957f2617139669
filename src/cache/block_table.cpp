#include "cache/block_table.h"

#include <algorithm>

#include "error.h"
#include "problem/tensor_rules.h"

namespace cuflash::cache {
namespace {

void require_all(const Pool& pool, std::span<const cuflash_sequence> sequences) {
  for (size_t n = 0; n < sequences.size(); ++n)
    if (!pool.has(sequences[n])) pool.require(join("sequences[", n, "]").c_str(), sequences[n]);
}

void require_one_row_each(const Argument& a, int rank, const char* shape, size_t sequences) {
  require_output(a, rank, shape);
  require_type(a, DType::i32, "as pages and lengths are");
  require_extent(a, 0, static_cast<int64_t>(sequences), "one row for each sequence");
}

}  // namespace

void write_block_table(const Pool& pool, std::span<const cuflash_sequence> sequences,
                       const cuflash_mutable_tensor& block_table, int32_t unused) {
  require_all(pool, sequences);
  const Argument a("block_table", block_table);
  require_one_row_each(a, 2, "[B, max_pages]", sequences.size());
  const int64_t columns = a.extent(1);
  for (size_t n = 0; n < sequences.size(); ++n)
    if (const auto pages = static_cast<int64_t>(pool.pages(sequences[n]).size()); pages > columns)
      reject("block_table: has ", columns, " columns, but sequences[", n, "] has ", pages,
             " pages; give it at least as many columns");
  auto* row = static_cast<int32_t*>(block_table.data);
  for (const cuflash_sequence sequence : sequences) {
    const std::span<const int32_t> pages = pool.pages(sequence);
    std::fill(std::copy(pages.begin(), pages.end(), row), row + columns, unused);
    row += a.step(0);
  }
}

void write_lengths(const Pool& pool, std::span<const cuflash_sequence> sequences,
                   const cuflash_mutable_tensor& cache_seqlens) {
  require_all(pool, sequences);
  require_one_row_each(Argument("cache_seqlens", cache_seqlens), 1, "[B]", sequences.size());
  auto* length = static_cast<int32_t*>(cache_seqlens.data);
  for (const cuflash_sequence sequence : sequences) *length++ = static_cast<int32_t>(pool.state(sequence).tokens);
}

}  // namespace cuflash::cache
