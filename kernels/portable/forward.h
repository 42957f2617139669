// Portable forward kernel: one CTA computes a query tile of one head with mma.sync and cp.async. The scores of a key
// tile stay in registers, where softmax turns them into probabilities and then into the A operand of P V.
//
//   shared memory   Q | K, V of each stage; O in the epilogue
//   per warp        16 * kRowTiles queries; O accumulators of its columns, scores of one key tile
//
//   stages >= 2     wait tile n | barrier | start copying tile n + stages - 1 | scores, softmax, accumulate
//   stages == 1     wait K | barrier | scores, interleaved with the copy of V | wait V | barrier | start next K |
//                   softmax, accumulate
#pragma once

#include "attn/softmax.h"
#include "attn/tile_mask.h"
#include "attn/tile_scores.h"

namespace cuflash {

// The query tile of a CTA.
struct QueryTile {
  int b, h, q_first;
};

template <ForwardConfig C>
struct Forward {
  static constexpr Element E = C.element;
  using Real = RealOf<E>;
  using Op = Operands<E>;
  static constexpr int kThreads = num_threads(C);
  static constexpr int kRowTiles = C.tile_q / (16 * C.row_warps);
  static constexpr int kColumns = C.dim_v / C.column_warps;  // columns of O per warp
  // The copy of V is issued in slices, one after each of the first steps of the scores; their number was measured.
  static constexpr int kSteps = (sums_drift(E) ? kShortSum : C.dim_qk) / Op::kDepth;
  static constexpr int kSlices = C.dim_v > 128 && !sums_drift(E) && kSteps >= 4 ? 4 : 2;
  static_assert(kSlices <= kSteps);
  static constexpr int kSeenWords = (C.tile_k + 31) / 32;
  static constexpr int kScoreTiles = C.tile_k / 8, kOutputTiles = kColumns / 8;
  static_assert(C.tile_q == 16 * kRowTiles * C.row_warps && C.tile_k % 16 == 0 && C.dim_qk % 16 == 0);
  static_assert(!sums_drift(E) || (C.tile_k % kShortSum == 0 && C.dim_qk % kShortSum == 0));
  static_assert(kColumns % 16 == 0 && kColumns * C.column_warps == C.dim_v);

  using QTile = Tile<E, C.tile_q, C.dim_qk>;
  using KTile = Tile<E, C.tile_k, C.dim_qk>;
  using VTile = Tile<E, C.tile_k, C.dim_v>;
  using OTile = Tile<E, C.tile_q, C.dim_v>;  // reuses all of shared memory in the epilogue
  static_assert(shared_bytes(C) >= OTile::kBytes);
  using Options = MaskedOptions<E, C.options>;
  using Traversal = MaskTraversal<C.tile_q, C.tile_k, MaskAxis::keys>;
  using Scores = Accumulator<Real>[kRowTiles][kScoreTiles];
  using Output = Accumulator<Real>[kRowTiles][kOutputTiles];

  const ForwardParams& p;
  const AttentionParams& a;
  unsigned char* memory;
  QueryTile query_tile;
  Sequence sequence;
  Options options;
  int seen_begin, seen_end;  // keys visible to some query of the tile
  const void* k_head;        // row 0 of the KV head
  const void* v_head;

  __device__ Forward(const ForwardParams& p, unsigned char* memory, QueryTile query_tile)
      : p(p),
        a(p.attention),
        memory(memory),
        query_tile(query_tile),
        sequence(sequence_of(a, query_tile.b)),
        options(a, sequence, query_tile.b, query_tile.h) {
    int head_k = query_tile.h;
    if (a.group != 1) head_k /= a.group;  // a division takes longer than the rest of the constructor
    k_head = row_address<E>(a.k, query_tile.b, head_k, sequence.k_begin);
    v_head = row_address<E>(a.v, query_tile.b, head_k, sequence.k_begin);
    const Range seen = keys_of_any(a, sequence, queries());
    seen_begin = static_cast<int>(seen.begin), seen_end = static_cast<int>(seen.end);
  }

  __device__ Range queries() const {
    return {query_tile.q_first, min(int64{query_tile.q_first} + C.tile_q, int64{sequence.len_q})};
  }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int warp_row() { return warp() / C.column_warps * (16 * kRowTiles); }
  __device__ static int warp_column() { return warp() % C.column_warps * kColumns; }
  // Row r of a lane within the tile.
  __device__ static int row_of(int r) { return warp_row() + r / 2 * 16 + r % 2 * 8 + accumulator_row(); }

  __device__ QTile q_tile() const { return {memory}; }
  __device__ KTile k_tile(int stage) const {
    return {memory + QTile::kBytes + stage * (KTile::kBytes + VTile::kBytes)};
  }
  __device__ VTile v_tile(int stage) const { return {k_tile(stage).memory + KTile::kBytes}; }

  __device__ void load_q() const {
    load_at_once(q_tile(), a.q, row_address<E>(a.q, query_tile.b, query_tile.h, sequence.q_begin), query_tile.q_first,
                 0, sequence.len_q, new_thread_id());
  }
  __device__ void load_first_k(int tile) const {
    load_at_once(k_tile(0), a.k, k_head, tile * C.tile_k, seen_begin, seen_end, thread_id());
  }
  // Loads that the whole CTA waits for. Bounds checks of every row and vector would take as long as the copies, so full
  // tiles skip them; with kCopyWhole the checks are cheap enough.
  template <int kRows>
  __device__ __forceinline__ void load_at_once(Tile<E, kRows, C.dim_qk> tile, const RowsView& rows, const void* head,
                                               int first, int begin, int end, int thread) const {
    if (C.copy == kCopyVectors && a.dim_qk == C.dim_qk && first >= begin && first + kRows <= end)
      load_tile<kCopyWhole, kThreads, RowsOf::whole_tile>(tile, rows, head, first, begin, end, a.dim_qk, thread);
    else load_tile<C.copy, kThreads>(tile, rows, head, first, begin, end, a.dim_qk, thread);
  }
  template <RowsOf kRows = RowsOf::part>
  __device__ __forceinline__ void load_k(int tile, int stage, Slice slice = {}) const {
    load_tile<C.copy, kThreads, kRows>(k_tile(stage), a.k, k_head, tile * C.tile_k, seen_begin, seen_end, a.dim_qk,
                                       thread_id(), slice);
  }
  template <RowsOf kRows = RowsOf::part>
  __device__ __forceinline__ void load_v(int tile, int stage, Slice slice = {}) const {
    load_tile<C.copy, kThreads, kRows>(v_tile(stage), a.v, v_head, tile * C.tile_k, seen_begin, seen_end, a.dim_v,
                                       thread_id(), slice);
  }

  // Products over kCount columns of Q and K. `meanwhile` is called after each of the first steps and issues cp.async.
  template <int kCount, class Meanwhile>
  __device__ __forceinline__ void multiply_columns(Scores& s, int stage, int first, Meanwhile&& meanwhile) const {
#pragma unroll
    for (int k = 0; k < kCount; k += Op::kDepth) {
      typename Op::A q[kRowTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) q[m] = Op::load_a(q_tile(), warp_row() + m * 16, first + k);
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        const typename Op::B keys = Op::load_b(k_tile(stage), n * 8, first + k);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int t = 0; t < 2; ++t) Op::multiply(s[m][n + t], q[m], keys, t);
      }
      if (k / Op::kDepth < kSlices) meanwhile(Slice{k / Op::kDepth, kSlices});
    }
  }

  template <class Meanwhile>
  __device__ __forceinline__ void scores(Scores& s, int stage, Meanwhile&& meanwhile) const {
    constexpr int kColumnsAtOnce = sums_drift(E) ? kShortSum : C.dim_qk;
    clear(s);
    multiply_columns<kColumnsAtOnce>(s, stage, 0, meanwhile);
#pragma unroll 1  // or the compiler would compute several parts at once
    for (int k = kColumnsAtOnce; k < C.dim_qk; k += kColumnsAtOnce) {
      Scores part;
      clear(part);
      multiply_columns<kColumnsAtOnce>(part, stage, k, [](Slice) {});
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) s[m][n] += part[m][n];
    }
  }
  static __device__ __forceinline__ void clear(Scores& s) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) s[m][n] = {};
  }

  // Zeroes values that the mask hides from every query of this tile, because a probability of 0 would not stop their
  // NaN. Rows of the mask beyond the sequence's length show nothing. Usually every key is visible to some query.
  __device__ __forceinline__ void hide_unseen_values(const Scores& s, int stage) const {
    auto* seen = reinterpret_cast<unsigned*>(memory + shared_bytes(C) - kSeenWords * 4);  // a bit per key
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kSeenWords) seen[thread] = 0;
    __syncthreads();
#pragma unroll
    for (int word = 0; word < kSeenWords; ++word) {
      unsigned mine = 0;
#pragma unroll
      for (int r = 0; r < 2 * kRowTiles; ++r) {
        if (query_tile.q_first + row_of(r) >= sequence.len_q) continue;
#pragma unroll
        for (int n = word * 4; n < kScoreTiles && n < word * 4 + 4; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (!(s[r / 2][n].x[r % 2 * 2 + e] == minus_infinity<Real>())) mine |= 1u << (n % 4 * 8 + e);
      }
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) mine |= __shfl_xor_sync(0xffffffffu, mine, distance);
      if (lane_id() < 4) atomicOr(seen + word, mine << (lane_id() * 2));
    }
    __syncthreads();
    bool all = true;
#pragma unroll
    for (int word = 0; word < kSeenWords; ++word) all &= seen[word] == ~0u >> (C.tile_k % 32 == 0 ? 0 : 16);
    if (all) return;
    for (int n = thread; n < C.tile_k * C.dim_v; n += kThreads)
      if (const int key = n / C.dim_v; (seen[key / 32] >> key % 32 & 1) == 0) *v_tile(stage).at(key, n % C.dim_v) = 0;
    __syncthreads();
  }

  __device__ __forceinline__ void accumulate(Output& o, const Scores& probs, int stage) const {
    if constexpr (sums_drift(E)) return accumulate_short(o, probs, stage);
    constexpr int kTilesPerStep = Op::kDepth / 8;
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += kTilesPerStep) {
      typename Op::A p_operand[kRowTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) p_operand[m] = Op::from_accumulators(&probs[m][n]);
#pragma unroll
      for (int d = 0; d < kOutputTiles; d += 2) {
        const typename Op::B values = Op::load_b_transposed(v_tile(stage), n * 8, warp_column() + d * 8);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int t = 0; t < 2; ++t) Op::multiply(o[m][d + t], p_operand[m], values, t);
      }
    }
  }

  // Limits sums in the tensor cores to kShortSum keys, column by column.
  __device__ __forceinline__ void accumulate_short(Output& o, const Scores& probs, int stage) const {
    constexpr int kSteps = kShortSum / Op::kDepth;
#pragma unroll
    for (int first = 0; first < C.tile_k; first += kShortSum) {
      typename Op::A p_operand[kSteps][kRowTiles];
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
          p_operand[step][m] = Op::from_accumulators(&probs[m][(first + step * Op::kDepth) / 8]);
#pragma unroll
      for (int d = 0; d < kOutputTiles; d += 2) {
        Accumulator<Real> part[kRowTiles][2] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const typename Op::B values =
              Op::load_b_transposed(v_tile(stage), first + step * Op::kDepth, warp_column() + d * 8);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
            for (int t = 0; t < 2; ++t) Op::multiply(part[m][t], p_operand[step][m], values, t);
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int t = 0; t < 2; ++t) o[m][d + t] += part[m][t];
      }
    }
  }

  // kApplyMask: some pair of the tile may be hidden. kNext: of the tiles to load.
  template <bool kApplyMask, RowsOf kNext, class Next>
  __device__ __forceinline__ void step(int n, int tile, Next&& next, Softmax<Real, kRowTiles>& softmax,
                                       Output& o) const {
    Scores s;
    int stage = 0;
    if constexpr (C.stages == 1) {
      cp_async_wait<0>();
      __syncthreads();
      scores(s, 0, [&](Slice slice) { load_v<kNext>(tile, 0, slice); });
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      next([&](int ahead) { load_k<kNext>(ahead, 0); });
      cp_async_commit();
    } else {
      cp_async_wait<C.stages - 2>();
      __syncthreads();
      next([&](int ahead) {
        load_k<kNext>(ahead, (n + C.stages - 1) % C.stages);
        load_v<kNext>(ahead, (n + C.stages - 1) % C.stages);
      });
      cp_async_commit();
      stage = n % C.stages;
      scores(s, stage, [](Slice) {});
    }
    const LaneCoord lane{row_of(0), lane_column(0, 0)};
    modify_and_mask<kApplyMask, C.tile_q>(s, a, sequence, options, lane, query_tile.q_first, tile * C.tile_k);
    if constexpr (Options::kReadsMask && kApplyMask)
      if (options.mask.blocks) {
        hide_masked(s, options.mask, query_tile.q_first + lane.row, tile * C.tile_k);
        hide_unseen_values(s, stage);
      }
    softmax.update(s, o);
    softmax.exponentiate(s);
    apply_dropout(s, options, lane, query_tile.q_first, tile * C.tile_k);
    accumulate(o, s, stage);
  }

  // Normalises O and writes LSE, both with the sink.
  __device__ __forceinline__ void finish(Softmax<Real, kRowTiles>& softmax, Output& o) const {
    softmax.reduce_row_sum();
    const Real sink = a.sink.data ? load_element<E>(a.sink.data, a.sink.element, offset_of(a.sink, 0, query_tile.h))
                                  : minus_infinity<Real>();
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const FinalizedRow<Real> row =
          finalize_row(softmax.row_max[r], softmax.row_sum[r], options.natural_scale(), sink, options.keep_scale());
      const int i = query_tile.q_first + row_of(r);
      const bool exists = i < sequence.len_q;
#pragma unroll
      for (int d = 0; d < kOutputTiles; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          Real& x = o[r / 2][d].x[r % 2 * 2 + e];
          x = exists ? x * row.o_scale : Real(0);
        }
      if (p.lse.data && warp_column() == 0 && lane_id() % 4 == 0 && i < rows_end())
        static_cast<Real*>(p.lse.data)[offset_of(p.lse, query_tile.b, query_tile.h, sequence.q_begin + i)] =
            exists ? row.lse : minus_infinity<Real>();
    }
  }

  // Rows below this are stored: a dense tensor has rows beyond the sequence's length, a packed one does not.
  __device__ int rows_end() const { return a.cu_q ? sequence.len_q : a.len_q; }

  __device__ __forceinline__ void store(const Output& o) const {
    const int64 head = offset_of(p.o, query_tile.b, query_tile.h, sequence.q_begin);
    if (p.o.element == static_cast<int>(E)) {
      const OTile tile{memory};
      __syncthreads();  // K and V have been read
#pragma unroll
      for (int r = 0; r < 2 * kRowTiles; ++r)
#pragma unroll
        for (int d = 0; d < kOutputTiles; ++d) {
          StoredOf<E>* to = tile.at(row_of(r), warp_column() + lane_column(d, 0));
          const Real x0 = o[r / 2][d].x[r % 2 * 2], x1 = o[r / 2][d].x[r % 2 * 2 + 1];
          if constexpr (size_of(E) == 2) *reinterpret_cast<unsigned*>(to) = pack<E>(x0, x1);
          else to[0] = x0, to[1] = x1;
        }
      __syncthreads();
      store_tile<kThreads>(tile, p.o, head, query_tile.q_first, min(C.tile_q, rows_end() - query_tile.q_first),
                           a.dim_v);
      return;
    }
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const int i = query_tile.q_first + row_of(r);
      if (i >= rows_end()) continue;
#pragma unroll
      for (int d = 0; d < kOutputTiles; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = warp_column() + lane_column(d, e);
          if (column < a.dim_v)
            store_element<E>(p.o.data, p.o.element, head + i * p.o.row_stride + column, o[r / 2][d].x[r % 2 * 2 + e]);
        }
    }
  }

  __device__ bool has_rows() const { return query_tile.q_first < rows_end(); }

  __device__ __forceinline__ void mainloop(Softmax<Real, kRowTiles>& softmax, Output& o) const {
    load_q();  // overlaps with the computation of the tile range
    const VisitedTiles visited = visited_key_tiles<C.tile_k>(a, sequence, queries());
    if constexpr (Options::kReadsMask) masked_mainloop(visited, softmax, o);
    else plain_mainloop(visited, softmax, o);
  }

  __device__ __forceinline__ void plain_mainloop(const VisitedTiles& visited, Softmax<Real, kRowTiles>& softmax,
                                                 Output& o) const {
    if (threadIdx.x == 0) count_tiles<C.tile_k>(a, sequence, queries(), visited);
    if (visited.count() == 0) {
      cp_async_commit();  // cp.async.wait_group waits for committed groups only
      cp_async_wait<0>();
      return;
    }
    if (C.stages == 1) load_first_k(visited.tile(0));
#pragma unroll
    for (int n = 0; n < C.stages - 1; ++n) {
      if (n < visited.count()) load_k(visited.tile(n), n), load_v(visited.tile(n), n);
      cp_async_commit();  // an empty group keeps the number of pending groups constant
    }
    if constexpr (C.stages == 1) cp_async_commit();
    int n = 0;
    const auto next = [&](auto load) {
      const int ahead = n + (C.stages == 1 ? 1 : C.stages - 1);
      if (ahead < visited.count()) load(visited.tile(ahead));
    };
    // Full tiles are visited last.
    for (; n < visited.num_masked; ++n) step<true, RowsOf::part>(n, visited.tile(n), next, softmax, o);
    for (; n < visited.count(); ++n) step<false, RowsOf::whole_tile>(n, visited.tile(n), next, softmax, o);
    cp_async_wait<0>();
  }

  // The tiles that the mask does not hide, in ascending order.
  __device__ __forceinline__ void masked_mainloop(const VisitedTiles& visited, Softmax<Real, kRowTiles>& softmax,
                                                  Output& o) const {
    const auto view = [&] { return MaskView{options.mask, query_tile.q_first, visited.end}; };
    Traversal traversal(visited.begin, view);
    if (threadIdx.x < 32) count_visible_tiles(traversal, view);
    // Tiles that are being loaded, as 2 * number + (the mask shows all of it); -1: none.
    constexpr int kAhead = C.stages == 1 ? 1 : C.stages - 1;
    int coming[kAhead];
    const auto next = [&](auto load) {
      const auto tile = traversal.next(view);
      coming[kAhead - 1] = tile.number < 0 ? -1 : 2 * tile.number + tile.is_full;
      if (tile.number >= 0) load(tile.number);
    };
    const auto shift = [&] {
#pragma unroll
      for (int n = 1; n < kAhead; ++n) coming[n - 1] = coming[n];
    };
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      shift();
      if constexpr (C.stages == 1) next([&](int tile) { load_first_k(tile); });
      else next([&](int tile) { load_k(tile, n), load_v(tile, n); });
      cp_async_commit();  // an empty group keeps the number of pending groups constant
    }
    for (int n = 0; coming[0] >= 0; ++n) {
      const int tile = coming[0] / 2;
      // A second copy of the step takes registers that the kernel with every option does not have.
      const bool full =
          C.options == kMaskTensor && coming[0] % 2 != 0 && tile >= visited.full_begin && tile < visited.full_end;
      shift();
      if (full) step<false, RowsOf::part>(n, tile, next, softmax, o);
      else step<true, RowsOf::part>(n, tile, next, softmax, o);
    }
    cp_async_wait<0>();
  }

  // Called by one warp: counts the tiles that the mask shows.
  template <class View>
  __device__ __forceinline__ void count_visible_tiles(Traversal traversal, const View& view) const {
    if (!a.tile_counts) return;
    const Range full = full_key_tiles<C.tile_k>(a, sequence, queries());
    int visible = 0, masked = 0;
    for (auto tile = traversal.next(view); tile.number >= 0; tile = traversal.next(view))
      ++visible, masked += !(tile.is_full && tile.number >= full.begin && tile.number < full.end);
    if (threadIdx.x == 0 && !queries().empty())
      add_tile_counts(a, visible, masked, tiles_in(sequence.len_k, C.tile_k) - visible);
  }

  // Under a causal mask the last queries see the most keys, so they start first.
  __device__ static QueryTile query_tile_of_cta(const AttentionParams& a) {
    const int64 tiles = tiles_in(a.len_q, C.tile_q), n = cta_number(), head = quotient(n, tiles);
    const int64 b = quotient(head, a.heads_q);
    return {static_cast<int>(b), static_cast<int>(head - b * a.heads_q),
            static_cast<int>(tiles - 1 - (n - head * tiles)) * C.tile_q};
  }
};

template <ForwardConfig C>
__device__ __forceinline__ void forward(const ForwardParams& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Kernel = Forward<C>;
  typename Kernel::Output o = {};
  const QueryTile begin = Kernel::query_tile_of_cta(p.attention);
  if (begin.b >= p.attention.batch) return;
  const Kernel kernel(p, memory, begin);
  if (!kernel.has_rows()) return;
  Softmax<typename Kernel::Real, Kernel::kRowTiles> softmax(kernel.options.scale_log2());
  kernel.mainloop(softmax, o);
  const Kernel end(p, memory, Kernel::query_tile_of_cta(p.attention));
  end.finish(softmax, o);
  end.store(o);
}

}  // namespace cuflash
