// Prologue kernel of backward. It fills the workspace: LSE and delta = dot(dO, O) - dLSE of every query, flags, zeros
// in dq_accum and in the sums of dK and dV, and the list of packed key tiles. It reads O and dO once and is
// memory-bound. Before a main kernel with a loader it leaves most heads to that kernel, where they cost less
// (sm90/backward/deferred_prepare.h).
#pragma once

#include "attn/score.h"
#include "portable/backward/workspace.h"
#include "ptx/grid.h"
#include "tile/eight.h"

namespace cuflash {

template <class Real>
__device__ __forceinline__ bool is_finite(Real x) {
  return x - x == Real(0);
}

// All-reduce over the lanes that share a row.
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

// Whether every row can be read in 16-byte vectors without further checks.
template <BackwardConfig C>
__device__ __forceinline__ bool has_whole_rows(const RowsView& rows) {
  constexpr int kPiece = 16 / size_of(C.element);
  return rows.element == static_cast<int>(C.element) && on_16_bytes(rows.data) &&
         ((rows.row_stride | rows.head_stride | rows.batch_stride) & (kPiece - 1)) == 0;
}

// Prepares the rows of one query tile. A thread has eight columns of every kRows-th row.
template <BackwardConfig C>
struct PrepareTile {
  using Real = RealOf<C.element>;
  static constexpr int kThreads = prepare_threads(C), kLanes = lanes_of_row(C.dim_v), kRows = kThreads / kLanes;
  static constexpr int kIterations = C.tile_q < kRows ? 1 : C.tile_q / kRows;

  const BackwardParams& p;
  Sequence s;
  int b, h;
  int first;  // first query of the tile
  Real* stats;
  int thread;
  // If Q of a row has a non-finite element, the LSE of the row is not finite either, or not between these bounds.
  Real lower, upper;
  bool not_finite = false, large = false, inconclusive = false;  // flags of the rows of this thread

  __device__ __forceinline__ int lane() const { return thread % kLanes; }
  __device__ __forceinline__ bool exists(int row) const { return row < C.tile_q && first + row < s.len_q; }
  __device__ __forceinline__ Real of_row(const RowsView& rows, int row) const {
    return static_cast<const Real*>(rows.data)[offset_of(rows, b, h, s.q_begin + first + row)];
  }
  // For rows that do not exist it loads the first row and returns 0, because an unconditional load does not wait for a
  // predicate.
  template <bool kWhole>
  __device__ __forceinline__ void load(const RowsView& rows, int row, Real (&x)[8]) const {
    const int count = exists(row) ? max(0, min(8, p.attention.dim_v - lane() * 8)) : 0;
    const int64 index = offset_of(rows, b, h, s.q_begin + first + (count > 0 ? row : 0)) + (count > 0 ? lane() * 8 : 0);
    if constexpr (kWhole) load_whole_eight<C.element>(rows.data, index, x);
    else load_eight<C.element>(rows.data, rows.element, index, count, x);
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (kWhole && count == 0) x[n] = 0;
  }

  // Rounds dO as the tensor cores see it, whatever type it is stored in. If few keys are visible, dP and delta are
  // nearly equal, and a rounding error on one side alone would dominate their difference.
  static __device__ __forceinline__ void round_as_operand(Real (&x)[8]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) x[n] = widen<C.element>(narrow<C.element>(x[n]));
  }

  // Computes LSE and delta of every row.
  template <bool kWhole>
  __device__ __forceinline__ void run() {
    constexpr int kMax = 8 / size_of(C.element),
                  kAtOnce = kWhole && kIterations >= kMax ? kMax : 1;  // rows in flight
    static_assert(kIterations % kAtOnce == 0);
#pragma unroll 1
    for (int first_row = thread / kLanes; first_row < C.tile_q; first_row += kRows * kAtOnce) {
      Real o[kAtOnce][8], dout[kAtOnce][8], lse[kAtOnce], dlse[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int row = first_row + n * kRows;
        load<kWhole>(p.o, row, o[n]);
        load<kWhole>(p.dout, row, dout[n]);
        if constexpr (!kWhole) round_as_operand(dout[n]);
        lse[n] = of_row(p.lse, exists(row) ? row : 0);
        if (!exists(row)) lse[n] = minus_infinity<Real>();
        dlse[n] = p.dlse.data ? of_row(p.dlse, exists(row) ? row : 0) : Real(0);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        Real dot = 0;
#pragma unroll
        for (int column = 0; column < 8; ++column) dot += o[n][column] * dout[n][column];
        record(first_row + n * kRows, lse[n],
               sum_of_lanes<kLanes>(dot) - (exists(first_row + n * kRows) ? dlse[n] : Real(0)));
      }
    }
  }
  __device__ __forceinline__ void record(int row, Real lse, Real delta) {
    const bool sees_nothing = lse == minus_infinity<Real>();
    not_finite |= !is_finite(delta) || !(sees_nothing || is_finite(lse));
    large |= is_large(lse);
    inconclusive |= !(lse > lower && lse < upper);
    if (lane() != 0) return;
    stats[lse_at(C, row)] = sees_nothing ? -minus_infinity<Real>() : lse * static_cast<Real>(kLog2e);
    stats[delta_at(C, row)] = sees_nothing ? Real(0) : delta;
  }

  __device__ __forceinline__ void check_queries() {
    const AttentionParams& a = p.attention;
    for (int row = thread / kLanes; exists(row); row += kRows) {
      const int64 offset = offset_of(a.q, b, h, s.q_begin + first + row);
      for (int column = lane() * 8; column < a.dim_qk; column += kLanes * 8) {
        Real x[8];
        load_eight<C.element>(a.q.data, a.q.element, offset + column, min(8, a.dim_qk - column), x);
#pragma unroll
        for (int n = 0; n < 8; ++n) not_finite |= !is_finite(x[n]);
      }
    }
  }
  static __device__ __forceinline__ bool is_large(Real lse) {
    return is_finite(lse) && (lse > kLargeLse || lse < -kLargeLse);
  }
  // Stores large LSE unscaled, and the bit mask of their rows.
  __device__ __forceinline__ void store_large_lse() const {
    constexpr int kWords = 2;
    static_assert(C.tile_q <= 32 * kWords && kThreads >= 32 * kWords && large_rows_at(C) + kWords <= row_stats_size(C));
    if (thread >= 32 * kWords) return;
    const Real lse = exists(thread) ? of_row(p.lse, thread) : Real(0);
    const unsigned rows = __ballot_sync(0xffffffffu, is_large(lse));
    if (thread % 32 == 0) reinterpret_cast<unsigned*>(stats + large_rows_at(C))[thread / 32] = rows;
    if (is_large(lse)) stats[lse_at(C, thread)] = lse;
  }
};

// Bounds between which an LSE shows that the row's elements of Q are finite. An infinite element makes every score
// infinite or NaN. If all are -inf, LSE is -inf or the sink; with softcap, scores are then the cap or its negative. The
// margins are larger than errors of rounding; Q is checked in rows beyond the bounds.
template <class Real>
struct ConclusiveLse {
  Real lower, upper;
};
template <BackwardConfig C>
__device__ __forceinline__ ConclusiveLse<RealOf<C.element>> conclusive_lse(const AttentionParams& a, int h) {
  using Real = RealOf<C.element>;
  constexpr Real kMargin = Real(0.01), kRelative = Real(1e-4);
  const Real infinity = -minus_infinity<Real>();
  ConclusiveLse<Real> bounds{-infinity, infinity};
  Real sink = -infinity;
  if (a.sink.data) {
    sink = load_element<C.element>(a.sink.data, a.sink.element, offset_of(a.sink, 0, h));
    bounds.lower = sink + kMargin + kRelative * fabs(sink);
  }
  if (a.softcap > 0) {
    if (a.slopes.data || a.bias.data) return {infinity, infinity};
    const Real cap = static_cast<Real>(a.softcap),
               of_keys = log2_of(static_cast<Real>(a.len_k)) * static_cast<Real>(kLn2);
    // The logarithm of a sum is at most that of two equal terms.
    const Real lowest = of_keys - cap, of_both = (sink > lowest ? sink : lowest) + Real(1);
    bounds.lower = of_both + kRelative * (cap + (a.sink.data ? fabs(sink) : Real(0)));
    bounds.upper = cap - kMargin - kRelative * cap;
  }
  return bounds;
}

template <BackwardConfig C>
__device__ __forceinline__ void prepare_tile(const BackwardParams& p, int b, int h, int tile) {
  using Real = RealOf<C.element>;
  using Tile = PrepareTile<C>;
  const Sequence s = sequence_of(p.attention, b);
  const int first = tile * C.tile_q, thread = static_cast<int>(threadIdx.x);
  if (first >= s.len_q) return;
  const int64 number = query_tile<C>(p, s, b, h, tile);
  if (p.dq_accum) {
    auto* sums = reinterpret_cast<uint4*>(dq_accum<C>(p, number));
    for (int n = thread; n < p.dq_rows * C.dim_qk * int(sizeof(Real)) / 16; n += Tile::kThreads) sums[n] = {0, 0, 0, 0};
  }
  if (p.dq_semaphore && thread == 0) p.dq_semaphore[number] = 0;

  Real* stats = row_stats<C>(p, number);
  const auto [lower, upper] = conclusive_lse<C>(p.attention, h);
  Tile rows{p, s, b, h, first, stats, thread, lower, upper};
  if (p.attention.dim_v % 8 == 0 && has_whole_rows<C>(p.o) && has_whole_rows<C>(p.dout)) rows.template run<true>();
  else rows.template run<false>();
  if (rows.inconclusive) rows.check_queries();
  const bool flag = __syncthreads_or(rows.not_finite) != 0;
  const bool any_large = __syncthreads_or(rows.large) != 0;
  // TMA also loads the words after the flags, so all of them are written.
  if (thread < row_stats_size(C) - flag_at(C))
    stats[flag_at(C) + thread] = Real(thread == 0 ? flag : thread == large_at(C) - flag_at(C) && any_large);
  if (!any_large) return;
  __syncthreads();
  rows.store_large_lse();
}

// Zeroes a CTA's share of the sums that parts of key tiles are added to.
template <BackwardConfig C>
__device__ __forceinline__ void zero_sums(const BackwardParams& p, int64 cta) {
  const int64 begin = cta * p.zero_bytes_per_cta, end = min(begin + p.zero_bytes_per_cta, p.zero_bytes);
  auto* bytes = reinterpret_cast<unsigned char*>(p.dk_accum);
#pragma unroll 1
  for (int64 n = begin + 16 * int64{threadIdx.x}; n < end; n += 16 * prepare_threads(C))
    *reinterpret_cast<uint4*>(bytes + n) = {0, 0, 0, 0};
}

// Writes the key tiles of sequence b to the list of all key tiles, after those of every sequence with more queries,
// whose tiles take longer. Every warp adds up all sequences itself, so that warps exchange nothing.
template <BackwardConfig C>
__device__ __forceinline__ void list_key_tiles(const BackwardParams& p, int b) {
  const AttentionParams& a = p.attention;
  const int len_q = sequence_of(a, b).len_q;
  const auto tiles_of = [&](const Sequence& s) { return static_cast<int>(tiles_in(s.len_k, p.listed_keys)); };
  int before = 0, all = 0;
#pragma unroll 1
  for (int other = lane_id(); other < a.batch; other += 32) {
    const Sequence s = sequence_of(a, other);
    const int tiles = tiles_of(s);
    if (s.len_q > len_q || (s.len_q == len_q && other < b)) before += tiles;
    all += tiles;
  }
  before = sum_of_lanes<32>(before), all = sum_of_lanes<32>(all);
  if (b == 0 && threadIdx.x == 0) p.key_tiles[0].b = min(all, p.max_listed);
  // Lengths that contradict the size of the tensor do not fit.
  const int tiles = min(tiles_of(sequence_of(a, b)), p.max_listed - before);
#pragma unroll 1
  for (int tile = static_cast<int>(threadIdx.x); tile < tiles; tile += prepare_threads(C))
    p.key_tiles[1 + before + tile] = {b, tile};
}

// Resets the counters of the heads, and the ticket of the heads that the main kernel prepares.
template <BackwardConfig C>
__device__ __forceinline__ void reset_counters(const BackwardParams& p, int64 cta) {
  const int64 heads = int64{p.attention.batch} * p.attention.heads_q, threads = num_ctas() * prepare_threads(C);
#pragma unroll 1
  for (int64 head = cta * prepare_threads(C) + int64{threadIdx.x}; head < heads; head += threads) {
    p.dq_tasks[head] = 0;
    p.prepared_tiles[head] = head < p.prepared_heads ? kAllPrepared : 0;
  }
  if (cta == 0 && threadIdx.x == 0)
    *p.prepare_ticket = static_cast<unsigned>(p.prepared_heads * tiles_in(p.attention.len_q, C.tile_q));
}

template <BackwardConfig C>
__device__ void backward_prepare(const BackwardParams& p) {
  griddepcontrol_launch_dependents();
  const int64 n = cta_number();
  if (p.ticket && n == 0 && threadIdx.x == 0) *p.ticket = p.first_ticket;
  if constexpr ((C.options & kBias) != 0)
    if (n == 0)
      for (int i = static_cast<int>(threadIdx.x); i <= p.dbias_counts; i += prepare_threads(C)) p.ticket[1 + i] = 0;
  if (p.dq_tasks) reset_counters<C>(p, n);
  if (p.zero_bytes != 0) zero_sums<C>(p, n);
  if (p.key_tiles && n < p.attention.batch) list_key_tiles<C>(p, static_cast<int>(n));
  if (n >= num_query_tiles<C>(p)) return;
  const RowTile tile = query_tile_at<C>(p, n);
  prepare_tile<C>(p, tile.b, tile.h, tile.tile);
}

}  // namespace cuflash
