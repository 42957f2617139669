// Sums over parts of the keys become outputs: those of the warps that shared the keys of a CTA, through shared memory, and
// those of CTAs that shared the keys of a tile of rows, through the workspace. Both are added in the order of the keys'
// parts, so that the result does not depend on who was first.
#pragma once

#include "attn/softmax.h"
#include "kv/geometry.h"
#include "kv/ticket.h"
#include "ptx/global.h"
#include "tile/eight.h"

namespace cuflash {

// The state of one row over some keys.
template <class Real>
struct RowState {
  Real max;  // largest score, or near it; -inf: no score yet
  Real sum;  // of weights
};

// What sums over some keys are multiplied by when the largest score of all is `top`: 2^-inf is 0. Where there is no score at
// all, no difference is a number, but all sums are 0, and so may be any top that is one.
template <class Real>
__device__ __forceinline__ Real rescale_factor(Real part_max, Real row_max, Real factor) {
  return exp2_of((part_max - (row_max == minus_infinity<Real>() ? Real(0) : row_max)) * factor);
}

// Columns of a row that one thread adds up: few, since what comes last waits for every instruction of it.
constexpr int kEpilogueColumns = 4;

// Columns of a row, added up over parts.
template <class Real>
struct PartialO {
  RowState<Real> row{minus_infinity<Real>(), 0};
  Real x[kEpilogueColumns] = {};

  // kAtOnce parts, of which `parts` exist. load(n, state, columns): the n-th part's. All of them are on their way together:
  // the workspace is a long way off. Those that do not exist are added, too, as nothing: that takes fewer instructions than
  // branches would.
  template <int kAtOnce, class Load>
  __device__ __forceinline__ void accumulate(int parts, Real factor, Load&& load) {
    RowState<Real> part[kAtOnce];
    Real columns[kAtOnce][kEpilogueColumns];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      part[n] = {minus_infinity<Real>(), 0};
#pragma unroll
      for (int c = 0; c < kEpilogueColumns; ++c) columns[n][c] = 0;
      if (n < parts) load(n, part[n], columns[n]);
    }
    raise_max(part, factor);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) add_part(part[n], columns[n], factor);
  }

 private:
  // By halves: a chain would wait for itself.
  template <int kCount>
  __device__ __forceinline__ static Real max_of(const RowState<Real>* part) {
    if constexpr (kCount == 1) return part[0].max;
    else return larger(max_of<kCount / 2>(part), max_of<kCount - kCount / 2>(part + kCount / 2));
  }
  // To the largest score of these parts, too.
  template <int kAtOnce>
  __device__ __forceinline__ void raise_max(const RowState<Real> (&part)[kAtOnce], Real factor) {
    const Real row_max = larger(row.max, max_of<kAtOnce>(part));
    const Real weight = rescale_factor(row.max, row_max, factor);
    row = {row_max, row.sum * weight};
#pragma unroll
    for (int c = 0; c < kEpilogueColumns; ++c) x[c] *= weight;
  }
  __device__ __forceinline__ void add_part(const RowState<Real>& part, const Real (&columns)[kEpilogueColumns],
                                           Real factor) {
    const Real weight = rescale_factor(part.max, row.max, factor);
    row.sum += part.sum * weight;
#pragma unroll
    for (int c = 0; c < kEpilogueColumns; ++c) x[c] += columns[c] * weight;
  }
};

// Where the splits of a tile of rows meet, and where their sums lie: those of one row side by side, so that whoever adds them up has one
// address for all. What one tile has is counted by ints.
template <KvConfig C>
struct SplitWorkspace {
  using Real = RealOf<C.element>;
  static_assert(int64{kMostSplits} * C.tile_q * C.dim_v < int64{1} << 31);
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

// Where columns of a row become output, and what else their end depends on. row: of the sequence.
template <Element E>
struct OutputSlice {
  using Real = RealOf<E>;
  int64 index, lse_index;
  Real sink;
  int count;    // of columns
  bool exists;  // a query; what is written of one that does not is nothing seen

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

// A row with its sink: the largest score of both, the sum of weights relative to it, and what weights shrink by for it. A row
// that sees nothing has a factor of 0 and, without a sink, an LSE of -inf. As end_row of attn/softmax.h has it, but in two
// parts: no output waits for an LSE.
template <class Real>
struct RowTotal {
  Real max, sum, shrink;

  // unit: scores times this are those of the contract.
  __device__ __forceinline__ static RowTotal of(const RowState<Real>& row, Real unit, Real sink) {
    constexpr Real kToPower = static_cast<Real>(kLog2e);
    const Real row_max = row.max == minus_infinity<Real>() ? minus_infinity<Real>() : row.max * unit;
    if (sink > minus_infinity<Real>()) {
      const Real new_max = larger(row_max, sink);
      const Real shrink = exp2_of((row_max - new_max) * kToPower);  // 0 where no key was visible
      return {new_max, row.sum * shrink + exp2_of((sink - new_max) * kToPower), shrink};
    }
    return {row_max, sink != sink ? sink : row.sum, Real(1)};
  }
  // What the output is multiplied by.
  __device__ __forceinline__ Real factor() const { return sum == 0 ? Real(0) : shrink / sum; }
  __device__ __forceinline__ Real lse() const {
    return sum == 0 ? minus_infinity<Real>() : max + log2_of(sum) * static_cast<Real>(kLn2);
  }
};

// Columns of a row become output, and the row's LSE is written by whoever has the first ones. kPlain: as in KvConfig.
template <Element E, bool kFastDecode>
__device__ __forceinline__ void write_output(const KvParams& p, const OutputSlice<E>& slice, bool writes_lse,
                                             RealOf<E> unit, PartialO<RealOf<E>>& sums) {
  using Real = RealOf<E>;
  const auto total = RowTotal<Real>::of(sums.row, unit, slice.sink);
  const Real factor = total.factor();
#pragma unroll
  for (int n = 0; n < kEpilogueColumns; ++n) sums.x[n] = slice.exists ? sums.x[n] * factor : Real(0);
  if (slice.count > 0) {
    if constexpr (kFastDecode) store_whole<E>(p.o.data, slice.index, sums.x);
    else store<E>(p.o.data, p.o.element, slice.index, slice.count, sums.x);
  }
  if (writes_lse && p.lse.data)
    static_cast<Real*>(p.lse.data)[slice.lse_index] = slice.exists ? total.lse() : minus_infinity<Real>();
}

}  // namespace cuflash
