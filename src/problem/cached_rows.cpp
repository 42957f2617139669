#include "problem/cached_rows.h"

#include <algorithm>

#include "error.h"
#include "problem/lengths.h"
#include "problem/tensor_rules.h"
#include "problem/visibility.h"

namespace cuflash {
namespace {

void require_lengths(const CacheProblem& p, int64_t b) {
  const AppendedRows append = append_of(p.cache, b);
  if (append.to < 0 || append.to > p.len_k)
    reject("seqlens: entry ", b, " is ", append.to, ", must be between 0 and ", p.len_k,
           ", what the cache has room for");
  if (append.to + append.count > p.len_k)
    reject("k_new: ", append.count, " rows behind the ", append.to, " of sequence ", b, " make ",
           append.to + append.count, ", but the cache has room for ", p.len_k,
           p.cache.page_size ? "; give the block table more columns" : "; make its entries longer");
  if (!p.cache.leftpad) return;
  const int64_t pad = p.cache.leftpad[b];
  if (pad < 0 || pad > append.to)
    reject("leftpad: entry ", b, " is ", pad, ", must be between 0 and ", append.to,
           ", the sequence's entry of seqlens");
}

void require_entries(const CacheProblem& p) {
  if (!p.cache.entry) {
    if (p.cache.entries < p.batch)
      reject("k: has ", p.cache.entries, " entries for a batch of ", p.batch,
             "; give batch_idx where sequences share one");
    return;
  }
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t entry = p.cache.entry[b];
    if (entry < 0 || entry >= p.cache.entries)
      reject("batch_idx: entry ", b, " is ", entry, ", must be between 0 and ", p.cache.entries - 1);
    if (p.cache.len_new == 0) continue;
    const bool appends = append_of(p.cache, b).count > 0;
    for (int64_t other = 0; other < b; ++other)
      if (p.cache.entry[other] == entry && (appends || append_of(p.cache, other).count > 0))
        reject("batch_idx: entries ", other, " and ", b, " are both ", entry,
               ", and what is appended for one would overwrite the other's; append to entries of their own");
  }
}

void require_pages(const CacheProblem& p, int64_t b, Range rows) {
  if (rows.empty()) return;
  for (int64_t column = rows.begin / p.cache.page_size; column * p.cache.page_size < rows.end; ++column) {
    const int64_t page = p.cache.table[b * p.cache.table_stride + column];
    if (page < 0 || page >= p.cache.entries)
      reject("block_table: entry [", b, ", ", column, "] is ", page, ", must be between 0 and ", p.cache.entries - 1);
  }
}

// The pages that a query sees, and those that are written.
void require_pages(const CacheProblem& p, int64_t b) {
  const Sequence seq = sequence_of(p, b);
  const AppendedRows append = append_of(p.cache, b);
  require_pages(p, b, {append.to, append.to + append.count});
  if (seq.len_q == 0) return;
  const Range keys = keys_of_queries(p, seq, {0, seq.len_q});
  require_pages(p, b, {seq.k_begin + keys.begin, seq.k_begin + keys.end});
}

void require_positions(const CacheProblem& p, int64_t b) {
  const Sequence seq = sequence_of(p, b);
  const int64_t needed = std::max(seq.len_k, seq.len_q == 0 ? int64_t{0} : seq.shift + seq.len_q);
  if (p.rotary && needed > p.rotary.positions)
    reject("rotary_cos: has ", p.rotary.positions, " positions, but sequence ", b, " reaches ", needed);
  if (p.rotary && seq.len_q > 0 && seq.shift < 0)
    reject("q: sequence ", b, " has ", seq.len_q, " queries for ", seq.len_k,
           " keys, so the first ones stand at no position and cannot be turned");
}

}  // namespace

void describe_cached_rows(CacheProblem& p, const cuflash_cache_tensors& c) {
  const Argument seqlens("seqlens", c.seqlens), entry("batch_idx", c.batch_idx), pad("leftpad", c.leftpad);
  p.cache.rows = lengths_of(seqlens, p.batch, "[B]", "the batch");
  if (pad.given()) p.cache.leftpad = lengths_of(pad, p.batch, "[B]", "the batch");
  if (entry.given()) {
    if (p.cache.page_size) reject("batch_idx: cannot be combined with block_table, whose rows are the sequences'");
    p.cache.entry = lengths_of(entry, p.batch, "[B]", "the batch");
  }
  if (p.place.on_cuda()) {
    if (!p.cache.page_size && !p.cache.entry && p.cache.entries < p.batch) require_entries(p);
    return;
  }
  for (int64_t b = 0; b < p.batch; ++b) require_lengths(p, b);
  if (!p.cache.page_size) require_entries(p);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.cache.page_size) require_pages(p, b);
    require_positions(p, b);
  }
}

}  // namespace cuflash
