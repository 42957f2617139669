// Reads rows of K or V from pages for the decode path: in place in multiples of 16 keys, at which its kernels may be
// split, and gathered where 16 keys straddle two pages. So the page size does not change the bits.
#pragma once

#include <algorithm>

#include "cpu/isa/decode_tables.h"
#include "cpu/plan/plan.h"
#include "cpu/tile/key_rows.h"

namespace cuflash::cpu {

inline constexpr int64_t kGatherKeys = 16;  // keys gathered at a time

struct PagedRows {
  const Problem& p;
  const ConstRows& from;
  int64_t b;
  Range heads;
  int64_t end;  // end of the rows that this and later calls of read use
  int64_t dim;
  std::byte* gathered;  // buffer for kGatherKeys keys of all heads

  // Calls body(rows, first head of the task, first of the keys) until all rows are read.
  template <class Body>
  void read(Range rows, Body body) const {
    for (int64_t begin = rows.begin, count = 0; begin < rows.end; begin += count) {
      const Range rest{begin, rows.end};
      count = in_place(rest);
      const int64_t key = begin - rows.begin;
      if (count == 0) {
        count = std::min(kGatherKeys, rest.size());
        gather_rows(p, from, b, heads, {begin, begin + count}, end, dim, gathered);
        const int64_t stride = heads.size() * dim;
        body(KeyRows{gathered, from.dtype, 0, dim, stride, heads.size(), count, dim, stride}, int64_t{0}, key);
      } else if (head_by_head()) {
        read_heads({begin, begin + count}, key, body);
      } else {
        const int64_t ahead = prefetch_rows();
        if (begin + ahead < end) count = std::min(count, std::max(in_place({begin + ahead, end}), kGatherKeys));
        body(rows_at(begin, heads.begin, heads.size(), count, begin + ahead, heads.begin), int64_t{0}, key);
      }
    }
  }

 private:
  // Prefetch distance that hides the latency of memory.
  static constexpr int64_t kPrefetchBytes = 16384;

  // Whether each head of a page is a contiguous block of rows, followed by the next head.
  bool head_by_head() const { return heads.size() > 1 && from.head_stride >= from.row_stride; }

  int64_t prefetch_rows() const {
    const int64_t bytes = heads.size() * dim * size_of(from.dtype);
    return round_up(std::max<int64_t>(kPrefetchBytes / bytes, 1), kGatherKeys);
  }

  int64_t in_place(Range rows) const {
    const int64_t count = contiguous_rows(p, from, b, rows);
    return count < rows.size() ? count / kGatherKeys * kGatherKeys : count;
  }

  KeyRows rows_at(int64_t row, int64_t head, int64_t run, int64_t count, int64_t prefetch_row,
                  int64_t prefetch_head) const {
    const int64_t offset = key_offset(p, from, b, head, row);
    int64_t distance = from.row_stride;
    if (prefetch_row < end) distance = key_offset(p, from, b, prefetch_head, prefetch_row) - offset;
    return {from.data, from.dtype, offset, from.head_stride, from.row_stride, run, count, dim, distance};
  }

  // One call per head. It prefetches the rows of a later head, in these pages or in the next ones.
  template <class Body>
  void read_heads(Range rows, int64_t key, Body body) const {
    const int64_t run = heads.size(), bytes = rows.size() * dim * size_of(from.dtype);
    const int64_t ahead = (kPrefetchBytes + bytes - 1) / bytes;
    for (int64_t n = 0; n < run; ++n) {
      const int64_t prefetch_row = rows.begin + (n + ahead) / run * rows.size();
      body(rows_at(rows.begin, heads.begin + n, 1, rows.size(), prefetch_row, heads.begin + (n + ahead) % run), n, key);
    }
  }
};

}  // namespace cuflash::cpu
