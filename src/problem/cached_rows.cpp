#include "problem/cached_rows.h"

#include <algorithm>

#include "error.h"
#include "problem/appends.h"
#include "problem/lengths.h"
#include "problem/tensor_rules.h"
#include "problem/visibility.h"

namespace cuflash {
namespace {

void require_lengths(const CacheProblem& p, int64_t b) {
  const AppendedRows append = append_of(p.cache, b);
  if (append.to < 0 || append.to > p.len_k)
    reject("seqlens: entry ", b, " is ", append.to, ", must be between 0 and ", p.len_k, ", the capacity of the cache");
  if (append.to + append.count > p.len_k)
    reject("k_new: appending ", append.count, " rows to the ", append.to, " of sequence ", b, " makes ",
           append.to + append.count, ", but the cache has room for ", p.len_k,
           p.cache.page_size ? "; give the block table more columns" : "; make its entries longer");
  if (!p.cache.leftpad) return;
  const int64_t pad = p.cache.leftpad[b];
  if (pad < 0 || pad > append.to)
    reject("leftpad: entry ", b, " is ", pad, ", must be between 0 and ", append.to,
           ", the sequence's length in seqlens");
}

// Requires valid entries. If sequences append, no two may use the same entry.
void require_entries(const CacheProblem& p) {
  if (!p.cache.entry) {
    if (p.cache.entries < p.batch)
      reject("k: has ", p.cache.entries, " entries for a batch of ", p.batch,
             "; give batch_idx if sequences share entries");
    return;
  }
  if (p.memory.on_cuda()) return;
  for (int64_t b = 0; b < p.batch; ++b)
    if (const int64_t entry = p.cache.entry[b]; entry < 0 || entry >= p.cache.entries)
      reject("batch_idx: entry ", b, " is ", entry, ", must be between 0 and ", p.cache.entries - 1);
  if (p.cache.len_new > 0) require_entries_disjoint(p);
}

void require_pages(const CacheProblem& p, int64_t b, Range columns) {
  const int32_t* pages = p.cache.pages(b, columns.begin);
  bool legal = true;
  for (int64_t n = 0; n < columns.size(); ++n) legal &= pages[n] >= 0 && pages[n] < p.cache.entries;
  for (int64_t n = 0; !legal && n < columns.size(); ++n)
    if (pages[n] < 0 || pages[n] >= p.cache.entries)
      reject("block_table: entry [", b, ", ", columns.begin + n, "] is ", pages[n], ", must be between 0 and ",
             p.cache.entries - 1);
}

// Copies only the columns that the call uses: entries beyond the rows of a sequence are never read.
void describe_table(CacheProblem& p, Snapshot& copies) {
  Snapshot memory;
  auto* columns = memory.take<Range>(p.batch);
  auto* table_rows = copies.take<int64_t>(p.batch);
  int64_t count = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    columns[b] = columns_of(p.cache, used_rows(p, b).all());
    table_rows[b] = count - columns[b].begin;
    count += columns[b].size();
  }
  auto* table = copies.take<int32_t>(count);
  const CachedKeys given = p.cache;
  p.cache.table = table, p.cache.table_rows = table_rows;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (columns[b].empty()) continue;
    Snapshot::read_once(given.pages(b, columns[b].begin), columns[b].size(),
                        table + (table_rows[b] + columns[b].begin));
    require_pages(p, b, columns[b]);
  }
}

void require_positions(const CacheProblem& p, int64_t b) {
  const Sequence seq = sequence_of(p, b);
  const int64_t needed = std::max(seq.len_k, seq.len_q == 0 ? int64_t{0} : seq.shift + seq.len_q);
  if (needed > p.rotary.positions)
    reject("rotary_cos: has ", p.rotary.positions, " positions, but sequence ", b, " needs ", needed);
  if (seq.len_q > 0 && seq.shift < 0)
    reject("q: sequence ", b, " has ", seq.len_q, " queries for ", seq.len_k,
           " keys, so its first queries have negative positions and cannot be rotated");
}

}  // namespace

void describe_cached_rows(CacheProblem& p, const cuflash_cache_tensors& c, Snapshot& copies) {
  const Argument seqlens("seqlens", c.seqlens), entry("batch_idx", c.batch_idx), pad("leftpad", c.leftpad);
  const auto values_of = [&](const Argument& a) {
    return lengths_of(a, p.batch, "[B]", "the batch", p.memory, copies);
  };
  p.cache.rows = values_of(seqlens);
  if (pad.given()) p.cache.leftpad = values_of(pad);
  if (entry.given()) {
    if (p.cache.page_size)
      reject("batch_idx: cannot be combined with block_table, which already assigns pages to the sequences");
    p.cache.entry = values_of(entry);
  }
  if (!p.cache.page_size && p.memory.on_cuda()) require_entries(p);
  if (p.memory.on_cuda()) return;
  for (int64_t b = 0; b < p.batch; ++b) require_lengths(p, b);
  if (!p.cache.page_size) require_entries(p);
  if (p.rotary)
    for (int64_t b = 0; b < p.batch; ++b) require_positions(p, b);
  if (!p.cache.page_size) return;
  describe_table(p, copies);
  if (p.cache.len_new > 0) require_pages_disjoint(p);
}

}  // namespace cuflash
