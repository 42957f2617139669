// A row of O and LSE whose splits (KeySplits) are reduced. The sink and the scale of dropout are applied here, once.
#pragma once

#include "kv/split_reduce.h"
#include "sm90/forward/split_store.h"

namespace cuflash {

template <Element E>
struct SplitRow {
  const Sm90ForwardParams& p;
  int b, h, i;
  Sequence sequence;

  __device__ __forceinline__ void write(int column, const PartialO<float>& sums) const {
    const ForwardParams& f = p.forward;
    const AttentionParams& a = f.attention;
    const float sink =
        a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, h)) : minus_infinity<float>();
    const float keep = static_cast<float>(a.keep_scale);  // 1 without dropout
    const bool exists = i < sequence.len_q;               // false: a padded query, written as one that sees no key
    const auto row = finalize_row(sums.row.row_max, sums.row.row_sum, p.splits.natural_scale, sink, keep);
    float x[kEpilogueColumns];
#pragma unroll
    for (int n = 0; n < kEpilogueColumns; ++n) x[n] = exists && row.o_scale != 0 ? sums.x[n] * row.o_scale : 0.0f;
    const int64 at = sequence.q_begin + i;
    store<E>(f.o.data, f.o.element, offset_of(f.o, b, h, at) + column, min(kEpilogueColumns, a.dim_v - column), x);
    if (column == 0 && f.lse.data)
      static_cast<float*>(f.lse.data)[offset_of(f.lse, b, h, at)] = exists ? row.lse : minus_infinity<float>();
  }
};

}  // namespace cuflash
