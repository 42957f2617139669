// dSink_h = -sum over rows of exp(sink_h - LSE) * delta. One CTA per head. Every thread sums the same rows in the same
// order in every call, and the threads are reduced in a fixed order, so the result is bitwise reproducible.
#pragma once

#include "attn/score.h"
#include "portable/backward/workspace.h"

namespace cuflash {

constexpr int kSinkRows = 1024;     // rows per warp and iteration
constexpr int kSinkRowsAtOnce = 8;  // rows whose loads a lane has in flight, because few CTAs hide their latency

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
    const auto* lse_rows = static_cast<const Real*>(p.lse.data) + offset_of(p.lse, b, h, s.q_begin);
    const Real* stats = row_stats<C>(p, query_tile<C>(p, s, b, h, 0));
    for (int64 first = begin + lane_id(); first < end; first += 32 * kSinkRowsAtOnce) {
      Real lse[kSinkRowsAtOnce], delta[kSinkRowsAtOnce];
#pragma unroll
      for (int n = 0; n < kSinkRowsAtOnce; ++n) {
        const int64 row = min(first + 32 * n, end - 1);
        lse[n] = lse_rows[row * p.lse.row_stride];
        delta[n] = stats[row / C.tile_q * row_stats_size(C) + delta_at(C, static_cast<int>(row % C.tile_q))];
      }
#pragma unroll
      for (int n = 0; n < kSinkRowsAtOnce; ++n)
        if (first + 32 * n < end && lse[n] != minus_infinity<Real>())
          sum -= static_cast<double>(exp2_of((sink - lse[n]) * static_cast<Real>(kLog2e)) * delta[n]);
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
