// One batch entry on the device: its rows, its lengths and which keys its queries see (attn/visibility.h).
#pragma once

#include "attn/visibility.h"
#include "params.h"
#include "ptx/special_registers.h"

namespace cuflash {

struct Sequence {
  int64 q_begin, k_begin;  // first row; 0 unless packed
  int len_q, len_k;
  int64 shift;  // query i is aligned with key i + shift
};

__device__ __forceinline__ int64 clamped(int64 x, int64 low, int64 high) { return max(low, min(x, high)); }

// The lengths are in the caller's device memory and have not been validated, so they are clamped to the extents of the
// tensors.
__device__ __forceinline__ Sequence sequence_of(const AttentionParams& a, int b) {
  Sequence s{0, 0, a.len_q, a.len_k, 0};
  if (a.cu_q) {
    s.q_begin = clamped(a.cu_q[b], 0, a.total_q);
    s.k_begin = clamped(a.cu_k[b], 0, a.total_k);
    s.len_q = static_cast<int>(clamped(min(int64{a.cu_q[b + 1]}, a.total_q) - s.q_begin, 0, a.len_q));
    s.len_k = static_cast<int>(clamped(min(int64{a.cu_k[b + 1]}, a.total_k) - s.k_begin, 0, a.len_k));
  }
  if (a.used_q) s.len_q = static_cast<int>(clamped(a.used_q[b], 0, a.len_q));
  if (a.used_k) s.len_k = static_cast<int>(clamped(a.used_k[b], 0, a.len_k));
  s.shift = a.top_left ? 0 : int64{s.len_k} - s.len_q;
  return s;
}

// Whether all sequences have the extents of the tensors, so that a tile sees the same in each of them.
__device__ __forceinline__ bool sequences_are_equal(const AttentionParams& a) {
  return !a.cu_q && !a.used_q && !a.used_k;
}

struct Range {
  int64 begin, end;
  __device__ bool empty() const { return begin >= end; }
};

__device__ __forceinline__ Range keys_of_query(const AttentionParams& a, const Sequence& s, int64 i) {
  return keys_seen_by<Range>(a, s, i);
}
// Keys visible to at least one of the queries, and keys visible to all of them. Both bounds of a query's window grow
// with the query.
__device__ __forceinline__ Range keys_of_any(const AttentionParams& a, const Sequence& s, Range queries) {
  if (queries.empty()) return {0, 0};
  return keys_seen_by_any(a, s, queries);
}
__device__ __forceinline__ Range keys_of_all(const AttentionParams& a, const Sequence& s, Range queries) {
  if (queries.empty()) return {0, 0};
  return keys_seen_by_all(a, s, queries);
}
// Queries that see at least one of the keys.
__device__ __forceinline__ Range queries_of_any(const AttentionParams& a, const Sequence& s, Range keys) {
  if (keys.empty()) return {0, 0};
  return queries_that_see_any(a, s, keys);
}

// Division of non-negative numbers. A 64-bit division takes about a hundred instructions and is rarely needed.
__device__ __forceinline__ int64 quotient(int64 a, int64 b) {
  return ((a | b) >> 32) != 0 ? a / b : int64{static_cast<unsigned>(a) / static_cast<unsigned>(b)};
}

__device__ __forceinline__ int64 tiles_in(int64 length, int tile) { return (length + tile - 1) / tile; }

}  // namespace cuflash
