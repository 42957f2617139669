// Sums over parts of the keys become outputs: those of the warps that shared the keys of a CTA, through shared memory, and
// those of CTAs that shared the keys of a tile of rows, through the workspace. Both are added in the order of the keys'
// parts, so that the result does not depend on who was first.
#pragma once

#include "attn/softmax.h"
#include "cache/geometry.h"
#include "ptx/global.h"
#include "tile/eight.h"

namespace cuflash {

// The state of one row over some keys.
template <class Real>
struct RowState {
  Real top;  // largest score, or near it; -inf: no score yet
  Real sum;  // of weights
};

// What sums over some keys are multiplied by when the largest score of all is `top`.
template <class Real>
__device__ __forceinline__ Real part_weight(Real part_top, Real top, Real factor) {
  return part_top == minus_infinity<Real>() ? Real(0) : exp2_of((part_top - top) * factor);
}

// Eight columns of a row, added up over parts. state(n), load(n, x): the n-th part's. kAtOnce parts are on their way
// together, states and columns: the workspace is a long way off.
template <class Real, int kAtOnce>
struct SummedEight {
  RowState<Real> row{minus_infinity<Real>(), 0};
  Real x[8] = {};

  template <class State, class Load>
  __device__ __forceinline__ SummedEight(int parts, Real factor, State&& state, Load&& load) {
#pragma unroll 1
    for (int first = 0; first < parts; first += kAtOnce) {
      RowState<Real> part[kAtOnce];
      Real columns[kAtOnce][8];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        part[n] = {minus_infinity<Real>(), 0};
        if (first + n < parts) part[n] = state(first + n), load(first + n, columns[n]);
      }
      raise(part, factor);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        if (first + n < parts) add(part[n], columns[n], factor);
    }
  }

 private:
  // To the largest score of these parts, too.
  __device__ __forceinline__ void raise(const RowState<Real> (&part)[kAtOnce], Real factor) {
    Real top = row.top;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) top = larger(top, part[n].top);
    const Real weight = part_weight(row.top, top, factor);
    row = {top, row.sum * weight};
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] *= weight;
  }
  __device__ __forceinline__ void add(const RowState<Real>& part, const Real (&columns)[8], Real factor) {
    const Real weight = part_weight(part.top, row.top, factor);
    row.sum += part.sum * weight;
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] += columns[c] * weight;
  }
};

// Where the sums of a split lie.
template <CacheConfig C>
struct SplitPlace {
  using Real = RealOf<C.element>;
  const CacheParams& p;
  int64 first;  // row of split 0 of the tile

  __device__ SplitPlace(const CacheParams& p, const CacheItem& at)
      : p(p), first(tile_number(p, at) * p.splits * p.state_rows) {}
  __device__ int64 row_of(int split, int row) const { return first + int64{split} * p.state_rows + row; }
  __device__ Real* state(int split, int row) const {
    return static_cast<Real*>(p.split_states) + row_of(split, row) * 2;
  }
  __device__ Real* sums(int split, int row, int column) const {
    return static_cast<Real*>(p.split_sums) + row_of(split, row) * C.dim_v + column;
  }
};

// Eight columns of a row become output, and the row's LSE is written by whoever has the first ones. row: of the sequence.
template <Element E, class Summed>
__device__ __forceinline__ void finish_eight(const CacheParams& p, const CachedSequence& s, const CacheItem& at,
                                             int row, int column, RealOf<E> unit, Summed& eight) {
  using Real = RealOf<E>;
  const AttentionParams& a = p.attention;
  const int query = row / a.group;
  const int64 head = int64{at.head_k} * a.group + (row - query * a.group);
  const bool exists = query < s.len_q;
  const Real sink =
      a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, head)) : minus_infinity<Real>();
  const RowEnd<Real> end = end_row(eight.row.top, eight.row.sum, unit, sink, Real(1));
#pragma unroll
  for (int n = 0; n < 8; ++n) eight.x[n] = exists ? eight.x[n] * end.factor : Real(0);
  if (column < a.dim_v)
    store_eight<E>(p.o.data, p.o.element, offset_of(p.o, at.b, head, s.q_begin + query) + column,
                   min(8, a.dim_v - column), eight.x);
  if (column == 0 && p.lse.data)
    static_cast<Real*>(p.lse.data)[offset_of(p.lse, at.b, head, s.q_begin + query)] =
        exists ? end.lse : minus_infinity<Real>();
}

}  // namespace cuflash
