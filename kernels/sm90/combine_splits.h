// A kernel of its own, launched behind a forward kernel with kSplitKeys: reduces the partial results of the splits, in
// the order of their keys, to O and LSE. The sink and the scale of dropout are applied here, once. C.lanes lanes share a
// row.
#pragma once

#include "kv/split_reduce.h"
#include "ptx/grid.h"
#include "sm90/split_store.h"

namespace cuflash {

template <MergeConfig C>
struct SplitRow {
  static constexpr Element E = C.element;
  static constexpr int kAtOnce = 8;

  const Sm90ForwardParams& p;
  int b, h, i;
  Sequence sequence;

  // Columns [column, column + kEpilogueColumns) over all splits. Those that saw no key have not stored O.
  __device__ __forceinline__ PartialO<float> reduce(int column) const {
    const KeySplits& s = p.splits;
    const int64 row = split_row(p.forward.attention, b, h, sequence.q_begin, i);
    const float *states = s.states + row * 2, *columns = s.o + row * s.columns + column;
    PartialO<float> sums;
#pragma unroll 1
    for (int left = static_cast<int>(s.splits); left > 0; left -= kAtOnce) {
      sums.template accumulate<kAtOnce>(left, s.scale_log2,
                                        [&](int n, RowState<float>& state, float(&x)[kEpilogueColumns]) {
                                          float loaded[2];
                                          load_from_l2(states + n * s.rows * 2, loaded);
                                          state = {loaded[0], loaded[1]};
                                          if (state.row_max != minus_infinity<float>())
                                            load_from_l2(columns + n * s.rows * s.columns, x);
                                        });
      states += kAtOnce * s.rows * 2, columns += kAtOnce * s.rows * s.columns;
    }
    return sums;
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

template <MergeConfig C>
__device__ __forceinline__ void combine_splits(const Sm90ForwardParams& p) {
  constexpr int kRows = num_threads(C) / C.lanes;
  const AttentionParams& a = p.forward.attention;
  const int64 blocks = tiles_in(a.len_q, kRows), head = quotient(cta_number(), blocks);
  const int thread = static_cast<int>(threadIdx.x);
  const int b = static_cast<int>(quotient(head, a.heads_q)), h = static_cast<int>(head - int64{b} * a.heads_q);
  griddepcontrol_wait();
  if (b >= a.batch) return;
  const SplitRow<C> row{p, b, h, static_cast<int>(cta_number() - head * blocks) * kRows + thread / C.lanes,
                        sequence_of(a, b)};
  if (row.i >= (a.cu_q ? row.sequence.len_q : a.len_q)) return;
#pragma unroll 1
  for (int column = thread % C.lanes * kEpilogueColumns; column < a.dim_v; column += C.lanes * kEpilogueColumns)
    row.write(column, row.reduce(column));
}

}  // namespace cuflash
