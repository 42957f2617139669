// Rotary embedding, applied to queries and new keys while they are loaded (prologue and append), eight elements at a
// time.
#pragma once

#include "kv/geometry.h"
#include "tile/eight.h"

namespace cuflash {

// The products are rounded separately, with no FMA: the result equals that of rotating the rows before the call.
template <class Real>
__device__ __forceinline__ Real rotated(Real x, Real other, Real cos, Real sin, bool second) {
  const Real straight = rounded_product(x, cos), across = rounded_product(other, sin);
  return second ? straight + across : straight - across;
}

// Whether each piece of eight lies inside one half of the rotated elements, or outside of both, so that its cos, sin
// and partner elements are contiguous.
__device__ __forceinline__ bool has_whole_pieces(const RotaryView& r) {
  return (r.interleaved ? r.dim : r.dim / 2) % 8 == 0;
}

// Elements d ... d + 7 of the row that begins at element `row` of `data`, of type E; those from `dim` on are 0.
// position: the row's position, less than r.positions. A piece need not begin at a multiple of eight, but is slower
// then.
//
// This function is not inlined, because code that a launch runs once is fetched from memory, and a small kernel starts
// sooner. Calls without rotation skip it.
template <Element E>
__device__ __noinline__ EightReals<RealOf<E>> rotated_eight(const RotaryView& r, int64 position, const void* data,
                                                            int64 row, int d, int dim) {
  using Real = RealOf<E>;
  EightReals<Real> eight;
  Real(&x)[8] = eight.x;
  const int count = max(0, min(8, dim - d));
  load_eight_of<E, E>(data, row + d, count, x);
  if (d >= r.dim) return eight;
  const int64 cos_row = position * r.cos_stride, sin_row = position * r.sin_stride;
  const bool whole = has_whole_pieces(r) && d % 8 == 0;
  Real cos[8], sin[8];
  if (whole && r.interleaved) {
    load_eight<E>(r.cos, r.element, cos_row + d / 2, 4, cos);
    load_eight<E>(r.sin, r.element, sin_row + d / 2, 4, sin);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const Real first = x[n], second = x[n + 1];
      x[n] = rotated(first, second, cos[n / 2], sin[n / 2], false);
      x[n + 1] = rotated(second, first, cos[n / 2], sin[n / 2], true);
    }
  } else if (whole) {
    const RotaryPair pair = rotary_pair(r, d);
    Real other[8];
    load_eight_of<E, E>(data, row + pair.other, 8, other);
    load_eight<E>(r.cos, r.element, cos_row + pair.column, 8, cos);
    load_eight<E>(r.sin, r.element, sin_row + pair.column, 8, sin);
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = rotated(x[n], other[n], cos[n], sin[n], pair.second);
  } else {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (d + n >= r.dim) continue;
      const RotaryPair pair = rotary_pair(r, d + n);
      x[n] = rotated(x[n], widen<E>(static_cast<const StoredOf<E>*>(data)[row + pair.other]),
                     load_element<E>(r.cos, r.element, cos_row + pair.column),
                     load_element<E>(r.sin, r.element, sin_row + pair.column), pair.second);
    }
  }
  return eight;
}

template <Element E>
__device__ __forceinline__ void load_rotated_eight(const RotaryView& r, int64 position, const void* data, int64 row,
                                                   int d, int dim, RealOf<E> (&x)[8]) {
  if (!r.cos) return load_eight_of<E, E>(data, row + d, max(0, min(8, dim - d)), x);
  const EightReals<RealOf<E>> eight = rotated_eight<E>(r, position, data, row, d, dim);
#pragma unroll
  for (int n = 0; n < 8; ++n) x[n] = eight.x[n];
}

// Where row n of the appended rows of a sequence begins in k_new or v_new.
__device__ __forceinline__ int64 new_row(const RowsView& rows, const CachedSequence& s, const WorkItem& item, int n) {
  return offset_of(rows, item.b, item.head_k, s.new_begin + n);
}

template <Element E>
__device__ __forceinline__ void load_new_key(const KvParams& p, const CachedSequence& s, const WorkItem& item, int n,
                                             int d, RealOf<E> (&x)[8]) {
  load_rotated_eight<E>(p.rotary, p.rotary.cos ? new_row_position(p.rotary, s, n) : 0, p.k_new.data,
                        new_row(p.k_new, s, item, n), d, p.attention.dim_qk, x);
}
template <Element E>
__device__ __forceinline__ void load_new_value(const KvParams& p, const CachedSequence& s, const WorkItem& item, int n,
                                               int d, RealOf<E> (&x)[8]) {
  if (p.v_new.data) {
    load_eight_of<E, E>(p.v_new.data, new_row(p.v_new, s, item, n) + d, max(0, min(8, p.attention.dim_v - d)), x);
  } else {
    load_rotated_eight<E>(p.rotary, p.rotary.cos ? new_row_position(p.rotary, s, n) : 0, p.k_new.data,
                          new_row(p.k_new, s, item, n), p.v_column + d, p.v_column + p.attention.dim_v, x);
  }
}

}  // namespace cuflash
