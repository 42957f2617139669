// The scratch of a decode task: query rows, scores and accumulators.
#pragma once

#include <algorithm>

#include "cpu/decode/paged_rows.h"
#include "cpu/isa/decode_tables.h"
#include "cpu/plan/arena.h"
#include "cpu/plan/plan.h"

namespace cuflash::cpu {

// Rows start on a cache line, and therefore on a whole vector of any instruction set.
inline constexpr int64_t kPadding = kAlignment / sizeof(float);

template <class T>
T* row_of(const RowBlock<T>& x, int64_t head, int64_t row) {
  return x.data + (head * x.rows + row) * x.stride;
}

// The partial softmax state of some rows over some keys, not yet divided by l. If weights are rounded, each row of o
// ends with their sums before and after rounding, which are rescaled and merged like the rest of the row.
template <class T>
struct Accumulator {
  RowBlock<T> o;  // [head][row][dim_v, padded; sums]
  T* m;           // [head][row]
  T* l;

  Accumulator(Arena& arena, const Problem& p, const DecodePlan& plan) {
    const int64_t rows = plan.heads_per_task * plan.rows, stride = round_up(p.dim_v, kPadding) + kPadding;
    o = {arena.take<T>(rows * stride), plan.rows, stride};
    m = arena.take<T>(rows);
    l = arena.take<T>(rows);
  }
};

template <class T>
struct DecodeScratch {
  RowBlock<T> q;        // [head][row][dim_qk]
  RowBlock<T> s;        // [head][row][key]
  T* staging;           // [key]
  std::byte* gathered;  // [key][dim_v], or [key][head][dim_qk or dim_v] from pages

  DecodeScratch(Arena& arena, const Problem& p, const DecodePlan& plan) {
    const int64_t rows = plan.heads_per_task * plan.rows, stride = round_up(p.dim_qk, kPadding);
    q = {arena.take<T>(rows * stride), plan.rows, stride};
    s = {arena.take<T>(plan.heads_per_task * max_decode_scores(plan.rows)), plan.rows, decode_block(plan.rows)};
    staging = arena.take<T>(std::max(kMaxDecodeKeys, round_up(p.dim_v, kPadding)));
    const int64_t dims = p.cache.page_size ? plan.heads_per_task * std::max(p.dim_qk, p.dim_v) : p.dim_v;
    gathered = arena.take<std::byte>(kGatherKeys * dims * size_of(p.dtype));
  }
};

}  // namespace cuflash::cpu
