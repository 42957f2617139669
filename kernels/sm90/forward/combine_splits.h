// A separate kernel, launched after a forward kernel with kSplitKeys: reduces the partial results of the splits to O
// and LSE. C.lanes lanes share a row; they have kSlots parts in flight, of one row or, if there are few splits, of
// several.
//
// It runs for a few microseconds, and most of that time is waiting for instructions that are in no cache, so its code
// is short: the parts arrive in shared memory by cp.async, without a register for each, and are added in a loop. Each
// lane holds the softmax state of one part.
#pragma once

#include "ptx/cp_async.h"
#include "ptx/grid.h"
#include "sm90/forward/split_row.h"

namespace cuflash {

template <MergeConfig C>
struct SplitCombiner {
  static constexpr int kSlots = kPartsInFlight;
  static_assert(C.lanes >= kSlots);

  const Sm90ForwardParams& p;
  unsigned memory;  // kSlots pieces of 16 bytes of every thread
  int lane;         // index among the lanes that share a row

  __device__ SplitCombiner(const Sm90ForwardParams& p, const unsigned char* shared)
      : p(p), memory(shared_address(shared) + threadIdx.x * 16), lane(static_cast<int>(threadIdx.x) % C.lanes) {}

  __device__ static unsigned slot(int n) { return static_cast<unsigned>(n * num_threads(C) * 16); }

  // Reduces x across the `width` adjacent lanes that hold the slots of one row.
  template <class Operation>
  __device__ static __forceinline__ float over_lanes(float x, int width, Operation&& operation) {
#pragma unroll
    for (int step = 1; step < kSlots; step *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, x, step);
      if (step < width) x = operation(x, other);
    }
    return x;
  }
  // The value that lane n of the row holds.
  __device__ static __forceinline__ float of_lane(float x, int n) {
    const int first = static_cast<int>(threadIdx.x) % 32 / C.lanes * C.lanes;
    return __shfl_sync(0xffffffffu, x, first + n);
  }

  // Reduces rows from first.i on, below `rows`, as many as there are slots for, with 1 << width_bits slots per row.
  // Lanes beyond the last column only take part in shuffles.
  __device__ __forceinline__ void reduce(SplitRow<C.element> first, int rows, int width_bits, int column) const {
    const KeySplits& s = p.splits;
    const int splits = static_cast<int>(s.splits), width = 1 << width_bits;
    const unsigned of_split = static_cast<unsigned>(s.rows),
                   columns = static_cast<unsigned>(s.columns);  // fit by kMaxBytes of plan/key_splits.cpp
    const int own = min(column, s.columns - kEpilogueColumns);
    const unsigned row_0 =
        static_cast<unsigned>(split_row(p.forward.attention, first.b, first.h, first.sequence.q_begin, 0));
    PartialO<float> sums;
#pragma unroll 1
    for (int begin = 0; begin < splits; begin += width) {
      // Splits and rows out of range load the last valid part instead.
      const auto part = [&](int n) {
        return min(begin + n % width, splits - 1) * of_split + row_0 + min(first.i + (n >> width_bits), rows - 1);
      };
#pragma unroll 4
      for (int n = 0; n < kSlots; ++n) cp_async_16(memory + slot(n), s.o + (part(n) * columns + own));
      cp_async_commit();
      float state[2];
      load_from_l2(s.states + part(lane % kSlots) * 2, state);
      if (begin + lane % width >= splits) state[0] = minus_infinity<float>(), state[1] = 0;
      const float part_max = over_lanes(state[0], width, [](float a, float b) { return larger(a, b); });
      const float row_max = larger(sums.row.row_max, part_max);
      const float correction = correction_of(state[0], row_max, s.scale_log2);
      const float part_sum = over_lanes(state[1] * correction, width, [](float a, float b) { return a + b; });
      // Splits that saw no key have not stored O.
      const float factor = state[0] == minus_infinity<float>() ? -1.0f : correction;
      cp_async_wait<0>();
#pragma unroll 1
      for (int n = 0; n < kSlots; n += width) {
        const float before = correction_of(sums.row.row_max, of_lane(row_max, n), s.scale_log2);
        sums.row = {of_lane(row_max, n), sums.row.row_sum * before + of_lane(part_sum, n)};
#pragma unroll
        for (float& x : sums.x) x *= before;
#pragma unroll 2
        for (int m = n; m < n + width; ++m) {
          const float scale = of_lane(factor, m);
          float x[kEpilogueColumns];
          load_from_shared(memory + slot(m), x, true);
          if (scale < 0) continue;
#pragma unroll
          for (int c = 0; c < kEpilogueColumns; ++c) sums.x[c] += x[c] * scale;
        }
        if (begin + width < splits) continue;
        SplitRow<C.element> row = first;
        row.i += n >> width_bits;
        if (row.i < rows && column < p.forward.attention.dim_v) row.write(column, sums);
        sums = {};
      }
    }
  }
};

template <MergeConfig C>
__device__ __forceinline__ void combine_rows(const Sm90ForwardParams& p, const unsigned char* memory) {
  const AttentionParams& a = p.forward.attention;
  const int b = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x);
  const int width_bits = slot_bits(p.splits.splits), rows_at_once = kPartsInFlight >> width_bits;
  const int first = static_cast<int>(blockIdx.x) * rows_of_reduction(C, p.splits.splits);
  const SplitRow<C.element> row{p, b, static_cast<int>(blockIdx.y), first + thread / C.lanes * rows_at_once,
                                sequence_of(a, b)};
  const int rows = a.cu_q ? row.sequence.len_q : a.len_q;
  if (first >= rows) return;
  const SplitCombiner<C> combiner(p, memory);
#pragma unroll 1
  for (int column = 0; column < p.splits.columns; column += C.lanes * kEpilogueColumns)
    combiner.reduce(row, rows, width_bits, column + combiner.lane * kEpilogueColumns);
}

// The grid: rows, heads, batch entries.
template <MergeConfig C>
__device__ __forceinline__ void combine_splits(const Sm90ForwardParams& p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  griddepcontrol_wait();
  combine_rows<C>(p, memory);
}

}  // namespace cuflash
