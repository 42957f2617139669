// Prologue: writes new rows to the cache. No CTA reads them there in the same launch; the mainloop takes them from
// k_new and v_new, so no ordering between CTAs is needed.
#pragma once

#include "attn/sequence.h"
#include "kv/rotary.h"

namespace cuflash {

// The splits of the first row tile share the new rows of their sequence and key/value head; threads take pieces of
// eight elements.
template <Element E, int kThreads>
__device__ __forceinline__ void append_rows(const KvParams& p, const CachedSequence& s, const WorkItem& item) {
  if (__builtin_expect(item.row_tile != 0 || item.split >= s.new_count, 1)) return;
  const AttentionParams& a = p.attention;
  const int rows = (s.new_count - item.split - 1) / p.splits + 1;
  const int k_pieces = (a.dim_qk + 7) / 8, v_pieces = p.v_new.data ? (a.dim_v + 7) / 8 : 0,
            pieces = k_pieces + v_pieces;
  for (int64 piece = threadIdx.x; piece < int64{rows} * pieces; piece += kThreads) {
    const int round = static_cast<int>(quotient(piece, pieces)), d = static_cast<int>(piece - int64{round} * pieces);
    const int n = item.split + round * p.splits;
    const KeyOffsets to = offsets_of_row(p, item.b, s.old_end + n);
    RealOf<E> x[8];
    if (d < k_pieces) {
      load_new_key<E>(p, s, item, n, d * 8, x);
      store_of<E, E>(a.k.data, item.head_k * a.k.head_stride + to.k + d * 8, min(8, a.dim_qk - d * 8), x);
    } else {
      const int column = (d - k_pieces) * 8;
      load_new_value<E>(p, s, item, n, column, x);
      store_of<E, E>(a.v.data, item.head_k * a.v.head_stride + to.v + column, min(8, a.dim_v - column), x);
    }
  }
}

}  // namespace cuflash
