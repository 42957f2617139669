// Split reduction, the arithmetic of the epilogue: combines partial (O, row max, row sum) over parts of the keys into O
// and LSE. Parts are the key warps of a CTA, through shared memory, and the splits of a row tile, through the
// workspace. Both are added in the order of the key ranges, so the result does not depend on which part finished first.
#pragma once

#include "attn/softmax.h"
#include "kv/geometry.h"
#include "kv/ticket.h"
#include "ptx/global.h"
#include "tile/eight.h"

namespace cuflash {

// Softmax state of one row over some of its keys.
template <class Real>
struct RowState {
  Real row_max;  // the largest score, or close to it; -inf before the first score
  Real row_sum;  // sum of the weights
};

// The factor that rescales a part's sums from its own maximum to row_max; 2^-inf is 0. If no part has a score, -inf -
// -inf would be NaN; all sums are 0 then, so any finite maximum will do.
template <class Real>
__device__ __forceinline__ Real correction_of(Real part_max, Real row_max, Real scale_log2) {
  return exp2_of((part_max - (row_max == minus_infinity<Real>() ? Real(0) : row_max)) * scale_log2);
}

// Columns of a row that one thread reduces. There are few, because every instruction of the epilogue adds to the
// latency of the call.
constexpr int kEpilogueColumns = 4;

// kEpilogueColumns columns of one row of O, not yet normalised, accumulated over parts of the keys.
template <class Real>
struct PartialO {
  RowState<Real> row{minus_infinity<Real>(), 0};
  Real x[kEpilogueColumns] = {};

  // Adds kAtOnce parts, of which `parts` exist; load(n, state, columns) loads part n. All loads are in flight together,
  // because the workspace is in L2 or DRAM. Missing parts are added as zeros, which takes fewer instructions than
  // branches.
  template <int kAtOnce, class Load>
  __device__ __forceinline__ void accumulate(int parts, Real scale_log2, Load&& load) {
    RowState<Real> part[kAtOnce];
    Real columns[kAtOnce][kEpilogueColumns];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      part[n] = {minus_infinity<Real>(), 0};
#pragma unroll
      for (int c = 0; c < kEpilogueColumns; ++c) columns[n][c] = 0;
      if (n < parts) load(n, part[n], columns[n]);
    }
    raise_max(part, scale_log2);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) add_part(part[n], columns[n], scale_log2);
  }

 private:
  // The maximum by a tree, since the latency of a chain would serialise it.
  template <int kCount>
  __device__ __forceinline__ static Real max_of(const RowState<Real>* part) {
    if constexpr (kCount == 1) return part[0].row_max;
    else return larger(max_of<kCount / 2>(part), max_of<kCount - kCount / 2>(part + kCount / 2));
  }
  // Raises row_max to the maximum of these parts and rescales what was accumulated.
  template <int kAtOnce>
  __device__ __forceinline__ void raise_max(const RowState<Real> (&part)[kAtOnce], Real scale_log2) {
    const Real row_max = larger(row.row_max, max_of<kAtOnce>(part));
    const Real correction = correction_of(row.row_max, row_max, scale_log2);
    row = {row_max, row.row_sum * correction};
#pragma unroll
    for (int c = 0; c < kEpilogueColumns; ++c) x[c] *= correction;
  }
  __device__ __forceinline__ void add_part(const RowState<Real>& part, const Real (&columns)[kEpilogueColumns],
                                           Real scale_log2) {
    const Real correction = correction_of(part.row_max, row.row_max, scale_log2);
    row.row_sum += part.row_sum * correction;
#pragma unroll
    for (int c = 0; c < kEpilogueColumns; ++c) x[c] += columns[c] * correction;
  }
};

// The part of the workspace that belongs to one row tile: its ticket and the partials of its splits. The partials of
// one row are adjacent, so the reducing thread needs one address for all of them. Offsets inside a tile fit into ints.
template <KvConfig C>
struct SplitWorkspace {
  using Real = RealOf<C.element>;
  static_assert(int64{kMaxSplits} * C.tile_q * C.dim_v < int64{1} << 31);
  uint64* ticket;
  Real *states, *partials;
  int splits;

  __device__ __forceinline__ static SplitWorkspace of(const KvParams& p, const WorkItem& item) {
    const int64 tile = tile_number(p, item), first = tile * p.splits * p.state_rows;
    return {p.tickets + tile, static_cast<Real*>(p.split_states) + first * 2,
            static_cast<Real*>(p.split_o) + first * C.dim_v, p.splits};
  }
  __device__ Real* state(int row, int split) const { return states + (row * splits + split) * 2; }
  __device__ Real* partial_o(int row, int split, int column) const {
    return partials + (row * splits + split) * C.dim_v + column;
  }
};

// The destination of a thread's columns of one row in O and LSE, and the inputs of finalising the row. row: number in
// the sequence.
template <Element E>
struct OutputSlice {
  using Real = RealOf<E>;
  int64 index, lse_index;
  Real sink;
  int count;    // columns to store
  bool exists;  // false: a padded query, written as a row that sees no key

  __device__ __forceinline__ static OutputSlice of(const KvParams& p, const CachedSequence& s, const WorkItem& item,
                                                   int row, int column) {
    const AttentionParams& a = p.attention;
    const int query = query_of_row(row, a.group);
    const int64 head = int64{item.head_k} * a.group + (row - query * a.group);
    const Real sink =
        a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, head)) : minus_infinity<Real>();
    return {offset_of(p.o, item.b, head, s.q_begin + query) + column, offset_of(p.lse, item.b, head, s.q_begin + query),
            sink, min(kEpilogueColumns, a.dim_v - column), query < s.len_q};
  }
};

// A row combined with its sink: the maximum of both, the sum of weights relative to it, and the correction for the
// row's own weights. A row that sees no key has an o_scale of 0 and, without a sink, an LSE of -inf. This is the row
// finalisation of attn/softmax.h in two steps, so that no output waits for an LSE. The code is not shared, because
// either form, used in both files, changed the machine code of the other kernels.
template <class Real>
struct RowTotal {
  Real row_max, row_sum, correction;

  // natural_scale: converts stored scores to those of the contract.
  __device__ __forceinline__ static RowTotal of(const RowState<Real>& row, Real natural_scale, Real sink) {
    constexpr Real kToPower = static_cast<Real>(kLog2e);
    const Real row_max = row.row_max == minus_infinity<Real>() ? minus_infinity<Real>() : row.row_max * natural_scale;
    if (sink > minus_infinity<Real>()) {
      const Real new_max = larger(row_max, sink);
      const Real correction = exp2_of((row_max - new_max) * kToPower);  // 0 where no key was visible
      return {new_max, row.row_sum * correction + exp2_of((sink - new_max) * kToPower), correction};
    }
    return {row_max, sink != sink ? sink : row.row_sum, Real(1)};
  }
  // Normalises the accumulated O.
  __device__ __forceinline__ Real o_scale() const { return row_sum == 0 ? Real(0) : correction / row_sum; }
  __device__ __forceinline__ Real lse() const {
    return row_sum == 0 ? minus_infinity<Real>() : row_max + log2_of(row_sum) * static_cast<Real>(kLn2);
  }
};

// Normalises and stores a thread's columns of O; the thread with the first columns also stores the LSE. kFastDecode: as
// in KvConfig.
template <Element E, bool kFastDecode>
__device__ __forceinline__ void write_output(const KvParams& p, const OutputSlice<E>& slice, bool writes_lse,
                                             RealOf<E> natural_scale, PartialO<RealOf<E>>& sums) {
  using Real = RealOf<E>;
  const auto total = RowTotal<Real>::of(sums.row, natural_scale, slice.sink);
  const Real o_scale = total.o_scale();
#pragma unroll
  for (int n = 0; n < kEpilogueColumns; ++n) sums.x[n] = slice.exists ? sums.x[n] * o_scale : Real(0);
  if (slice.count > 0) {
    if constexpr (kFastDecode) store_whole<E>(p.o.data, slice.index, sums.x);
    else store<E>(p.o.data, p.o.element, slice.index, slice.count, sums.x);
  }
  if (writes_lse && p.lse.data)
    static_cast<Real*>(p.lse.data)[slice.lse_index] = slice.exists ? total.lse() : minus_infinity<Real>();
}

}  // namespace cuflash
