// dSink_h = -sum over rows of exp(sink_h - LSE) * delta. One CTA per head. Every thread sums the same rows in the same
// order in every call, and the threads are reduced in a fixed order, so the result is bitwise reproducible.
#pragma once

#include "attn/score.h"
#include "portable/backward/workspace.h"

namespace cuflash {

constexpr int kSinkRows = 1024;  // rows per warp and iteration

template <BackwardConfig C>
__device__ __forceinline__ double sink_sum(const BackwardParams& p, int h, RealOf<C.element> sink) {
  using Real = RealOf<C.element>;
  const AttentionParams& a = p.attention;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int parts = static_cast<int>(tiles_in(a.len_q, kSinkRows));
  double sum = 0;
  int b = 0, part = warp;
  for (;; part += sink_threads(C) / 32) {
    for (; part >= parts && b < a.batch; part -= parts) ++b;
    if (b >= a.batch) break;
    const Sequence s = sequence_of(a, b);
    const int64 begin = int64{part} * kSinkRows, end = min(begin + kSinkRows, int64{s.len_q});
    for (int64 row = begin + lane_id(); row < end; row += 32) {
      const Real lse = static_cast<const Real*>(p.lse.data)[offset_of(p.lse, b, h, s.q_begin + row)];
      if (lse == minus_infinity<Real>()) continue;
      const Real* stats = row_stats<C>(p, query_tile<C>(p, s, b, h, row / C.tile_q));
      const Real delta = stats[delta_at(C, static_cast<int>(row % C.tile_q))];
      sum -= static_cast<double>(exp2_of((sink - lse) * static_cast<Real>(kLog2e)) * delta);
    }
  }
  return sum;
}

template <BackwardConfig C>
__device__ void backward_sink(const BackwardParams& p) {
  using Real = RealOf<C.element>;
  constexpr int kThreads = sink_threads(C);
  __shared__ double sums[kThreads];
  const AttentionParams& a = p.attention;
  const int thread = static_cast<int>(threadIdx.x);
  const int h = static_cast<int>(blockIdx.x);
  const Real sink = load_element<C.element>(a.sink.data, a.sink.element, offset_of(a.sink, 0, h));
  sums[thread] = sink_sum<C>(p, h, sink);  // 0 for a sink of -inf, but NaN if a row is NaN
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0)
    store_element<C.element>(p.dsink.data, p.dsink.element, offset_of(p.dsink, 0, h), static_cast<Real>(sums[0]));
}

}  // namespace cuflash
