// Memory that is needed soon: it is prefetched while products run, which need hardly any memory bandwidth.
#pragma once

#include <algorithm>

#include "cpu/tile/key_rows.h"
#include "cpu/tile/panel.h"

namespace cuflash::cpu {

// Adds some of the rows, as far as there is room for them.
inline void append(const Source& rows, Range part, Ahead& ahead) {
  if (part.empty() || ahead.count == Ahead::kMax) return;
  const int64_t size = size_of(rows.dtype), bytes = rows.dim * size, stride = rows.row_stride * size;
  const auto* first = static_cast<const std::byte*>(rows.data) + rows.offset * size + part.begin * stride;
  const RowsAhead some =
      stride == bytes ? RowsAhead{first, bytes * part.size(), 0, 1} : RowsAhead{first, bytes, stride, part.size()};
  ahead.rows[ahead.count++] = some;
  ahead.lines += (some.bytes + Ahead::kLine - 1) / Ahead::kLine * some.count;
}

// Whether all tensors of the call together fit into the cache, so that nothing need be prefetched.
inline bool fits_second_level_cache(const Problem& p) {
  constexpr double kBytes = 2 << 20;
  const auto rows = [&](int64_t heads, int64_t length, int64_t total) {
    return static_cast<double>(heads) * static_cast<double>(p.packed() ? total : p.batch * length);
  };
  const double elements = (rows(p.heads_q, p.len_q, p.total_q) + rows(p.heads_k, p.len_k, p.total_k)) *
                          static_cast<double>(p.dim_qk + p.dim_v);
  return elements * static_cast<double>(size_of(p.dtype)) <= kBytes;
}

// Rows that all panels of a tile fetch together.
class ReadAhead {
 public:
  // wanted: whether to fetch at all.
  ReadAhead(const Problem& p, bool wanted) : p_(p), wanted_(wanted) {}

  void add(const Source& rows) {
    if (wanted_ && count_ < Ahead::kMax) rows_[count_++] = rows;
  }
  // Adds the rows of K and V of these keys, unless they are in the pages of a cache, which are gathered row by row.
  void add_keys(const Head& head, Range keys) {
    if (p_.cache.page_size) return;
    const auto add_rows = [&](const ConstRows& from, int64_t dim) {
      add({from.data, from.dtype, key_offset(p_, from, head.b, head.hk, head.seq.k_begin + keys.begin), from.row_stride,
           keys.size(), dim});
    };
    add_rows(p_.k, p_.dim_qk);
    add_rows(p_.v, p_.dim_v);
  }
  void add_queries(const Head& head, Range queries) {
    Source rows = source_of(p_.q, head.b, head.h, head.seq.q_begin, queries, p_.dim_qk);
    constexpr int64_t kMaxBytes = 256 * 1024;  // more would evict data that is still in use
    rows.count = std::min(rows.count, kMaxBytes / std::max<int64_t>(1, rows.dim * size_of(rows.dtype)));
    add(rows);
  }

  // The rows that panel `n` of `panels` fetches: its share, and all of `own`, which only this panel needs.
  Ahead share(int64_t n, int64_t panels, const Source& own = {}) const {
    Ahead ahead;
    for (int i = 0; i < count_; ++i)
      append(rows_[i], {rows_[i].count * n / panels, rows_[i].count * (n + 1) / panels}, ahead);
    if (wanted_) append(own, {0, own.count}, ahead);
    return ahead;
  }

 private:
  const Problem& p_;
  const bool wanted_;
  Source rows_[Ahead::kMax] = {};
  int count_ = 0;
};

}  // namespace cuflash::cpu
