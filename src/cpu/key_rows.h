// Where the keys of a sequence lie: in rows one after the other, or in the pages of a cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "problem/problem.h"
#include "problem/visibility.h"

namespace cuflash::cpu {

// The first element of a row of sequence b, of k or v; rows are counted as Sequence::k_begin does.
inline int64_t key_offset(const Problem& p, const ConstRows& from, int64_t b, int64_t h, int64_t row) {
  const CacheRow at = cache_row(p.cache, b, row);
  return from.at(at.entry, h, at.row);
}

// How many of the rows, from the first on, lie one row stride apart. Pages that follow each other in memory are one run.
inline int64_t rows_in_order(const Problem& p, const ConstRows& from, int64_t b, Range rows) {
  const int64_t size = p.cache.page_size;
  if (size == 0) return rows.size();
  const int32_t* page = p.cache.table + b * p.cache.table_stride + rows.begin / size;
  const bool joined = from.batch_stride == size * from.row_stride;
  int64_t end = (rows.begin / size + 1) * size;
  for (; joined && end < rows.end && page[1] == page[0] + 1; ++page) end += size;
  return std::min(end, rows.end) - rows.begin;
}

// to [row][head][dim], in the type of the tensor.
inline void gather_rows(const Problem& p, const ConstRows& from, int64_t b, Range heads, Range rows, int64_t dim,
                        std::byte* to) {
  const int64_t size = size_of(from.dtype);
  const int64_t joined = from.head_stride == dim ? heads.size() : 1;  // heads that lie side by side
  const auto bytes = static_cast<size_t>(joined * dim * size);
  const auto* data = static_cast<const std::byte*>(from.data);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t h = heads.begin; h < heads.end; h += joined, to += bytes)
      std::memcpy(to, data + key_offset(p, from, b, h, row) * size, bytes);
  }
}

}  // namespace cuflash::cpu
