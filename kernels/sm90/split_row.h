// A row of O and LSE from the partial results of its splits (KeySplits), reduced in the order of their keys. The sink and
// the scale of dropout are applied here, once.
#pragma once

#include "kv/split_reduce.h"
#include "sm90/split_store.h"

namespace cuflash {

template <Element E>
struct SplitRow {
  const Sm90ForwardParams& p;
  int b, h, i;
  Sequence sequence;

  // Adds columns [column, column + kEpilogueColumns) of kAtOnce splits, those that exist. Splits that saw no key have not
  // stored O; it is loaded all the same, since a load that waits for the row's state would double the latency.
  template <int kAtOnce>
  __device__ __forceinline__ void add(PartialO<float>& sums, int column, int first) const {
    const KeySplits& s = p.splits;
    const int64 row = first * s.rows + split_row(p.forward.attention, b, h, sequence.q_begin, i);
    const float *states = s.states + row * 2, *columns = s.o + row * s.columns + column;
    sums.template accumulate<kAtOnce>(static_cast<int>(s.splits) - first, s.scale_log2,
                                      [&](int n, RowState<float>& state, float(&x)[kEpilogueColumns]) {
                                        float loaded[2];
                                        load_from_l2(states + n * s.rows * 2, loaded);
                                        load_from_l2(columns + n * s.rows * s.columns, x);
                                        state = {loaded[0], loaded[1]};
#pragma unroll
                                        for (float& y : x) y = state.row_max != minus_infinity<float>() ? y : 0.0f;
                                      });
  }
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
