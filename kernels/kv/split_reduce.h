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
  Real top;  // largest score, or near it; -inf: no score yet
  Real sum;  // of weights
};

// What sums over some keys are multiplied by when the largest score of all is `top`: 2^-inf is 0. Where there is no score at
// all, no difference is a number, but all sums are 0, and so may be any top that is one.
template <class Real>
__device__ __forceinline__ Real part_weight(Real part_top, Real top, Real factor) {
  return exp2_of((part_top - (top == minus_infinity<Real>() ? Real(0) : top)) * factor);
}

// Columns of a row that one thread adds up: few, since what comes last waits for every instruction of it.
constexpr int kEndColumns = 4;

// Columns of a row, added up over parts.
template <class Real>
struct SummedColumns {
  RowState<Real> row{minus_infinity<Real>(), 0};
  Real x[kEndColumns] = {};

  // kAtOnce parts, of which `parts` exist. load(n, state, columns): the n-th part's. All of them are on their way together:
  // the workspace is a long way off. Those that do not exist are added, too, as nothing: that takes fewer instructions than
  // branches would.
  template <int kAtOnce, class Load>
  __device__ __forceinline__ void add(int parts, Real factor, Load&& load) {
    RowState<Real> part[kAtOnce];
    Real columns[kAtOnce][kEndColumns];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      part[n] = {minus_infinity<Real>(), 0};
#pragma unroll
      for (int c = 0; c < kEndColumns; ++c) columns[n][c] = 0;
      if (n < parts) load(n, part[n], columns[n]);
    }
    raise(part, factor);
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) add_part(part[n], columns[n], factor);
  }

 private:
  // By halves: a chain would wait for itself.
  template <int kCount>
  __device__ __forceinline__ static Real largest_of(const RowState<Real>* part) {
    if constexpr (kCount == 1) return part[0].top;
    else return larger(largest_of<kCount / 2>(part), largest_of<kCount - kCount / 2>(part + kCount / 2));
  }
  // To the largest score of these parts, too.
  template <int kAtOnce>
  __device__ __forceinline__ void raise(const RowState<Real> (&part)[kAtOnce], Real factor) {
    const Real top = larger(row.top, largest_of<kAtOnce>(part));
    const Real weight = part_weight(row.top, top, factor);
    row = {top, row.sum * weight};
#pragma unroll
    for (int c = 0; c < kEndColumns; ++c) x[c] *= weight;
  }
  __device__ __forceinline__ void add_part(const RowState<Real>& part, const Real (&columns)[kEndColumns],
                                           Real factor) {
    const Real weight = part_weight(part.top, row.top, factor);
    row.sum += part.sum * weight;
#pragma unroll
    for (int c = 0; c < kEndColumns; ++c) x[c] += columns[c] * weight;
  }
};

// Where the splits of a tile of rows meet, and where their sums lie: those of one row side by side, so that whoever adds them up has one
// address for all. What one tile has is counted by ints.
template <KvConfig C>
struct SplitPlace {
  using Real = RealOf<C.element>;
  static_assert(int64{kMostSplits} * C.tile_q * C.dim_v < int64{1} << 31);
  uint64* ticket;
  Real *states, *all_sums;
  int splits;

  __device__ __forceinline__ static SplitPlace of(const KvParams& p, const KvItem& at) {
    const int64 tile = tile_number(p, at), first = tile * p.splits * p.state_rows;
    return {p.tickets + tile, static_cast<Real*>(p.split_states) + first * 2,
            static_cast<Real*>(p.split_sums) + first * C.dim_v, p.splits};
  }
  __device__ Real* state(int row, int split) const { return states + (row * splits + split) * 2; }
  __device__ Real* sums(int row, int split, int column) const {
    return all_sums + (row * splits + split) * C.dim_v + column;
  }
};

// Where columns of a row become output, and what else their end depends on. row: of the sequence.
template <Element E>
struct OutputPlace {
  using Real = RealOf<E>;
  int64 index, lse_index;
  Real sink;
  int count;    // of columns
  bool exists;  // a query; what is written of one that does not is nothing seen

  __device__ __forceinline__ static OutputPlace of(const KvParams& p, const CachedSequence& s, const KvItem& at,
                                                   int row, int column) {
    const AttentionParams& a = p.attention;
    const int query = query_of_row(row, a.group);
    const int64 head = int64{at.head_k} * a.group + (row - query * a.group);
    const Real sink =
        a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, head)) : minus_infinity<Real>();
    return {offset_of(p.o, at.b, head, s.q_begin + query) + column, offset_of(p.lse, at.b, head, s.q_begin + query),
            sink, min(kEndColumns, a.dim_v - column), query < s.len_q};
  }
};

// A row with its sink: the largest score of both, the sum of weights relative to it, and what weights shrink by for it. A row
// that sees nothing has a factor of 0 and, without a sink, an LSE of -inf. As finalize_row of attn/softmax.h has it, but in two
// parts: no output waits for an LSE.
template <class Real>
struct RowTotal {
  Real top, sum, shrink;

  // unit: scores times this are those of the contract.
  __device__ __forceinline__ static RowTotal of(const RowState<Real>& row, Real unit, Real sink) {
    constexpr Real kToPower = static_cast<Real>(kLog2e);
    const Real top = row.top == minus_infinity<Real>() ? minus_infinity<Real>() : row.top * unit;
    if (sink > minus_infinity<Real>()) {
      const Real higher = larger(top, sink);
      const Real shrink = exp2_of((top - higher) * kToPower);  // 0 where no key was visible
      return {higher, row.sum * shrink + exp2_of((sink - higher) * kToPower), shrink};
    }
    return {top, sink != sink ? sink : row.sum, Real(1)};
  }
  // What the output is multiplied by.
  __device__ __forceinline__ Real factor() const { return sum == 0 ? Real(0) : shrink / sum; }
  __device__ __forceinline__ Real lse() const {
    return sum == 0 ? minus_infinity<Real>() : top + log2_of(sum) * static_cast<Real>(kLn2);
  }
};

// Columns of a row become output, and the row's LSE is written by whoever has the first ones. kPlain: as in KvConfig.
template <Element E, bool kPlain>
__device__ __forceinline__ void write_output(const KvParams& p, const OutputPlace<E>& place, bool writes_lse,
                                             RealOf<E> unit, SummedColumns<RealOf<E>>& sums) {
  using Real = RealOf<E>;
  const auto total = RowTotal<Real>::of(sums.row, unit, place.sink);
  const Real factor = total.factor();
#pragma unroll
  for (int n = 0; n < kEndColumns; ++n) sums.x[n] = place.exists ? sums.x[n] * factor : Real(0);
  if (place.count > 0) {
    if constexpr (kPlain) store_whole<E>(p.o.data, place.index, sums.x);
    else store<E>(p.o.data, p.o.element, place.index, place.count, sums.x);
  }
  if (writes_lse && p.lse.data)
    static_cast<Real*>(p.lse.data)[place.lse_index] = place.exists ? total.lse() : minus_infinity<Real>();
}

}  // namespace cuflash
