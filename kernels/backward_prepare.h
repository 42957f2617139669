// What the other kernels of backward find in the workspace: of every query LSE and delta = dot(dO, O) - dLSE, and sums of
// dQ that are 0. Reads O and dO once; memory-bound.
#pragma once

#include "attn/score.h"
#include "backward/workspace.h"
#include "tile/eight.h"

namespace cuflash {

template <class Real>
__device__ __forceinline__ bool is_finite(Real x) {
  return x - x == Real(0);
}

// Sum of the lanes that share a row; every one of them gets it.
template <int kLanes, class Real>
__device__ __forceinline__ Real sum_of_lanes(Real x) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

constexpr int lanes_of_row(int dim) {
  int lanes = 1;
  while (lanes * 8 < dim) lanes *= 2;
  return lanes;
}

// Not finite where something that is not finite stands in the lane's share of a query.
template <Element E, int kLanes>
__device__ __forceinline__ RealOf<E> nothing_of_query(const BackwardParams& p, int64 offset, int lane) {
  const AttentionParams& a = p.attention;
  using Real = RealOf<E>;
  Real nothing = 0;
  for (int column = lane * 8; column < a.dim_qk; column += kLanes * 8) {
    Real x[8];
    load_eight<E>(a.q.data, a.q.element, offset + column, min(8, a.dim_qk - column), x);
#pragma unroll
    for (int n = 0; n < 8; ++n) nothing += x[n] - x[n];
  }
  return nothing;
}

template <BackwardConfig C>
__device__ __forceinline__ void prepare_tile(const BackwardParams& p, int b, int h, int tile) {
  using Real = RealOf<C.element>;
  constexpr int kThreads = prepare_threads(C), kLanes = lanes_of_row(C.dim_v), kRows = kThreads / kLanes;
  static_assert(C.tile_q % kRows == 0 || kRows > C.tile_q);
  const AttentionParams& a = p.attention;
  const Sequence s = sequence_of(a, b);
  const int first = tile * C.tile_q;
  if (first >= s.len_q) return;
  const int64 number = query_tile<C>(p, s, b, h, tile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  if (p.dq_sums) {
    auto* sums = reinterpret_cast<uint4*>(dq_sums<C>(p, number));
    for (int n = thread; n < p.dq_rows * C.dim_qk * int(sizeof(Real)) / 16; n += kThreads) sums[n] = {0, 0, 0, 0};
  }
  if (p.turns && thread == 0) p.turns[number] = 0;

  Real* stats = row_stats<C>(p, number);
  const int count = max(0, min(8, a.dim_v - lane * 8));
  // With a sink or softcap a query that is not finite may have a finite LSE. Elsewhere LSE tells.
  const bool lse_tells = !a.sink.data && !(a.softcap > 0);
  bool bad = false, large = false;
#pragma unroll 2
  for (int row = thread / kLanes; row < C.tile_q; row += kRows) {
    const bool exists = first + row < s.len_q;
    const int64 source = s.q_begin + first + row;
    Real o[8], dout[8], dot = 0, lse = minus_infinity<Real>(), dlse = 0;
    load_eight<C.element>(p.o.data, p.o.element, offset_of(p.o, b, h, source) + lane * 8, exists ? count : 0, o);
    load_eight<C.element>(p.dout.data, p.dout.element, offset_of(p.dout, b, h, source) + lane * 8, exists ? count : 0,
                          dout);
    if (exists) lse = static_cast<const Real*>(p.lse.data)[offset_of(p.lse, b, h, source)];
    if (exists && p.dlse.data) dlse = static_cast<const Real*>(p.dlse.data)[offset_of(p.dlse, b, h, source)];
#pragma unroll
    for (int n = 0; n < 8; ++n) dot += o[n] * dout[n];
    const bool sees_nothing = lse == minus_infinity<Real>();
    Real nothing = 0;
    if (exists && (sees_nothing || !lse_tells))
      nothing = nothing_of_query<C.element, kLanes>(p, offset_of(a.q, b, h, source), lane);
    nothing = sum_of_lanes<kLanes>(nothing);
    const Real delta = sum_of_lanes<kLanes>(dot) - dlse;
    bad |= !is_finite(delta) || !is_finite(nothing) || !(sees_nothing || is_finite(lse));
    large |= !sees_nothing && is_finite(lse) && (lse > kLargeLse || lse < -kLargeLse);
    if (lane != 0) continue;
    stats[lse_at(C, row)] = sees_nothing ? -minus_infinity<Real>() : lse * static_cast<Real>(kLog2e);
    stats[delta_at(C, row)] = sees_nothing ? Real(0) : delta;
  }
  const bool flag = __syncthreads_or(bad) != 0;
  const bool any_large = __syncthreads_or(large) != 0;
  // What follows the flags is copied with them.
  if (thread < row_stats_size(C) - flag_at(C))
    stats[flag_at(C) + thread] = Real(thread == 0 ? flag : thread == large_at(C) - flag_at(C) && any_large);
  if (!any_large) return;
  for (int row = thread; row < C.tile_q && first + row < s.len_q; row += kThreads) {
    const Real lse = static_cast<const Real*>(p.lse.data)[offset_of(p.lse, b, h, s.q_begin + first + row)];
    if (lse != minus_infinity<Real>()) stats[lse_at(C, row)] = lse;
  }
}

template <BackwardConfig C>
__device__ void backward_prepare(const BackwardParams& p) {
  const AttentionParams& a = p.attention;
  const int64 tiles = tiles_in(a.len_q, C.tile_q), count = tiles * a.heads_q * a.batch;
  if (p.ticket && cta_number() == 0 && threadIdx.x == 0) *p.ticket = 0;
  const int64 n = cta_number();
  if (n >= count) return;
  const int64 head = quotient(n, tiles), b = quotient(head, a.heads_q);
  prepare_tile<C>(p, static_cast<int>(b), static_cast<int>(head - b * a.heads_q), static_cast<int>(n - head * tiles));
}

}  // namespace cuflash
