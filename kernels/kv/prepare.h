// Before the sm90 forward kernels attend a KV cache: appends new rows to the cache, rotates the queries into the
// workspace, and writes the lengths after the append. The forward kernels then see a padded problem whose K and V are
// the cache.
#pragma once

#include "kv/append.h"

namespace cuflash {

// Rotates the queries of the heads of a group. CTAs share them as they share new rows: p.splits of them have the same
// sequence and key/value head.
template <Element E, int kThreads>
__device__ __forceinline__ void rotate_queries(const CachedForwardParams& p, const CachedSequence& s,
                                               const WorkItem& item) {
  const AttentionParams& a = p.cache.attention;
  if (!p.rotated_q.data || item.split >= s.len_q) return;
  const int queries = (s.len_q - item.split - 1) / p.cache.splits + 1, pieces = (a.dim_qk + 7) / 8;
  const int64 pieces_of_query = int64{a.group} * pieces;
  for (int64 piece = threadIdx.x; piece < queries * pieces_of_query; piece += kThreads) {
    const int round = static_cast<int>(quotient(piece, pieces_of_query)),
              in_query = static_cast<int>(piece - round * pieces_of_query), head = in_query / pieces,
              d = (in_query - head * pieces) * 8;
    const int query = item.split + round * p.cache.splits;
    const int64 h = int64{item.head_k} * a.group + head;
    RealOf<E> x[8];
    load_rotated_eight<E>(p.cache.rotary, query_position(p.cache.rotary, s, query), a.q.data,
                          offset_of(a.q, item.b, h, s.q_begin + query), d, a.dim_qk, x);
    store_of<E, E>(p.rotated_q.data, offset_of(p.rotated_q, item.b, h, s.q_begin + query) + d, min(8, a.dim_qk - d), x);
  }
}

template <CachePrepareConfig C>
__device__ __forceinline__ void prepare_cache(const CachedForwardParams& p) {
  const KvParams& cache = p.cache;
  if (!has_work_item(cache, cta_number())) return;
  const WorkItem item = work_item(cache, cta_number());
  const CachedSequence s = cached_sequence(cache, item.b);
  append_rows<C.element, kPrepareThreads>(cache, s, item);
  rotate_queries<C.element, kPrepareThreads>(p, s, item);
  if (item.head_k != 0 || item.split != 0 || threadIdx.x != 0) return;
  p.lengths[item.b] = s.len_k;
  p.first_rows[item.b] = 0;
  if (item.b == cache.attention.batch - 1) p.first_rows[item.b + 1] = 0;
}

}  // namespace cuflash
