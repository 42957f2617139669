// Sums over parts of the keys become outputs: those of the warps that shared the keys of a CTA, through shared memory, and
// those of CTAs that shared the keys of a tile of rows, through the workspace. Both are added in the order of the keys'
// parts, so that the result does not depend on who was first.
#pragma once

#include "attn/softmax.h"
#include "cache/geometry.h"
#include "cache/ticket.h"
#include "ptx/global.h"
#include "tile/eight.h"

namespace cuflash {

// The state of one row over some keys.
template <class Real>
struct RowState {
  Real top;  // largest score, or near it; -inf: no score yet
  Real sum;  // of weights
};

// What sums over some keys are multiplied by when the largest score of all is `top`. Without a branch: 2^-inf is 0.
template <class Real>
__device__ __forceinline__ Real part_weight(Real part_top, Real top, Real factor) {
  return exp2_of(part_top == minus_infinity<Real>() ? part_top : (part_top - top) * factor);
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
  // To the largest score of these parts, too.
  template <int kAtOnce>
  __device__ __forceinline__ void raise(const RowState<Real> (&part)[kAtOnce], Real factor) {
    Real top = row.top;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) top = larger(top, part[n].top);
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

// Where the sums of the splits of a tile of rows lie: those of one row side by side, so that whoever adds them up has one
// address for all. What one tile has is counted by ints.
template <CacheConfig C>
struct SplitPlace {
  using Real = RealOf<C.element>;
  static_assert(int64{kMostSplits} * C.tile_q * C.dim_v < int64{1} << 31);
  Real *states, *all_sums;
  int splits;

  __device__ __forceinline__ SplitPlace(const CacheParams& p, const CacheItem& at) : splits(p.splits) {
    const int64 first = tile_number(p, at) * p.splits * p.state_rows;
    states = static_cast<Real*>(p.split_states) + first * 2;
    all_sums = static_cast<Real*>(p.split_sums) + first * C.dim_v;
  }
  __device__ Real* state(int row, int split) const { return states + (row * splits + split) * 2; }
  __device__ Real* sums(int row, int split, int column) const {
    return all_sums + (row * splits + split) * C.dim_v + column;
  }
};

// Columns of a row become output, and the row's LSE is written by whoever has the first ones. row: of the sequence. Where
// nothing `is_written` all else is done.
template <Element E>
__device__ __forceinline__ void finish_columns(const CacheParams& p, const CachedSequence& s, const CacheItem& at,
                                               int row, int column, RealOf<E> unit, SummedColumns<RealOf<E>>& sums,
                                               bool is_written) {
  using Real = RealOf<E>;
  const AttentionParams& a = p.attention;
  const int query = row / a.group;
  const int64 head = int64{at.head_k} * a.group + (row - query * a.group);
  const bool exists = query < s.len_q;
  const Real sink =
      a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, head)) : minus_infinity<Real>();
  const RowEnd<Real> end = end_row(sums.row.top, sums.row.sum, unit, sink, Real(1));
#pragma unroll
  for (int n = 0; n < kEndColumns; ++n) sums.x[n] = exists ? sums.x[n] * end.factor : Real(0);
  if (column < a.dim_v && is_written)
    store<E>(p.o.data, p.o.element, offset_of(p.o, at.b, head, s.q_begin + query) + column,
             min(kEndColumns, a.dim_v - column), sums.x);
  if (column == 0 && p.lse.data && is_written)
    static_cast<Real*>(p.lse.data)[offset_of(p.lse, at.b, head, s.q_begin + query)] =
        exists ? end.lse : minus_infinity<Real>();
}

}  // namespace cuflash
