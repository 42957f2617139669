// Where the keys of a sequence are: in contiguous rows, or in the pages of a cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "problem/problem.h"
#include "problem/visibility.h"

namespace cuflash::cpu {

// The first element of a row of k or v of sequence b; rows are numbered as in Sequence::k_begin.
inline int64_t key_offset(const Problem& p, const ConstRows& from, int64_t b, int64_t h, int64_t row) {
  const CacheRow at = cache_row(p.cache, b, row);
  return from.at(at.entry, h, at.row);
}

// How many of the rows, counted from the first, are one row stride apart. Pages that are adjacent in memory form one
// run.
inline int64_t contiguous_rows(const Problem& p, const ConstRows& from, int64_t b, Range rows) {
  const int64_t size = p.cache.page_size;
  if (size == 0) return rows.size();
  const int32_t* page = p.cache.pages(b, rows.begin / size);
  const bool joined = from.batch_stride == size * from.row_stride;
  int64_t end = (rows.begin / size + 1) * size;
  for (; joined && end < rows.end && page[1] == page[0] + 1; ++page) end += size;
  return std::min(end, rows.end) - rows.begin;
}

// Copies rows to [row][head][dim], in the type of the tensor. Rows up to `end` are prefetched, because the hardware
// prefetcher does not follow the block table.
inline void gather_rows(const Problem& p, const ConstRows& from, int64_t b, Range heads, Range rows, int64_t end,
                        int64_t dim, std::byte* to) {
  constexpr int64_t kPrefetchBytes = 16384, kLine = 64;
  const int64_t size = size_of(from.dtype);
  const int64_t joined = from.head_stride == dim ? heads.size() : 1;  // adjacent heads are copied together
  const int64_t bytes = joined * dim * size, ahead = kPrefetchBytes / (heads.size() * dim * size) + 1;
  const auto* data = static_cast<const std::byte*>(from.data);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t h = heads.begin; h < heads.end; h += joined, to += bytes) {
      if (row + ahead < end) {
        const std::byte* later = data + key_offset(p, from, b, h, row + ahead) * size;
        for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(later + at, 0, 2);
      }
      std::memcpy(to, data + key_offset(p, from, b, h, row) * size, static_cast<size_t>(bytes));
    }
  }
}

}  // namespace cuflash::cpu
