// A kernel of its own, launched behind a forward kernel with kSplitKeys: reduces the partial results of the splits to O
// and LSE. C.lanes lanes share a row.
#pragma once

#include "ptx/grid.h"
#include "sm90/split_row.h"

namespace cuflash {

// kCount rows of a thread, kStride apart, and kAtOnce splits of each: all loads are in flight together.
template <int kCount, int kStride, int kAtOnce, Element E>
__device__ __forceinline__ void reduce_rows(SplitRow<E> row, int rows, int column) {
  const int first_row = row.i;
  PartialO<float> sums[kCount];
#pragma unroll 1
  for (int first = 0; first < static_cast<int>(row.p.splits.splits); first += kAtOnce)
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      row.i = min(first_row + n * kStride, rows - 1);
      row.template add<kAtOnce>(sums[n], column, first);
    }
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    row.i = first_row + n * kStride;
    if (row.i < rows) row.write(column, sums[n]);
  }
}

template <MergeConfig C>
__device__ __forceinline__ void combine_splits(const Sm90ForwardParams& p) {
  constexpr int kRows = num_threads(C) / C.lanes, kAtOnce = 8;
  const AttentionParams& a = p.forward.attention;
  const int rows_of_cta = rows_of_reduction(C, p.splits.splits);
  const int64 blocks = tiles_in(a.len_q, rows_of_cta), head = quotient(cta_number(), blocks);
  const int thread = static_cast<int>(threadIdx.x);
  const int b = static_cast<int>(quotient(head, a.heads_q)), h = static_cast<int>(head - int64{b} * a.heads_q);
  griddepcontrol_wait();
  if (b >= a.batch) return;
  const SplitRow<C.element> row{
      p, b, h, static_cast<int>(cta_number() - head * blocks) * rows_of_cta + thread / C.lanes, sequence_of(a, b)};
  const int rows = a.cu_q ? row.sequence.len_q : a.len_q;
  if (row.i >= rows) return;
#pragma unroll 1
  for (int column = thread % C.lanes * kEpilogueColumns; column < a.dim_v; column += C.lanes * kEpilogueColumns) {
    if (rows_of_cta > kRows) reduce_rows<kRowsOfFewSplits, kRows, kFewSplits>(row, rows, column);
    else reduce_rows<1, kRows, kAtOnce>(row, rows, column);
  }
}

}  // namespace cuflash
