// Portable backward kernel: dK, dV and dQ. A CTA keeps a key tile and visits the query tiles that see it, for all query
// heads that share the keys:
//
//   S^T = K Q^T           keys in rows: a warp has kKeyTiles x 16 keys and kQueries queries
//   P   = exp(S - LSE)
//   dP^T = V dO^T
//   dS  = P (dP - delta)
//   dV += P^T dO          P and dS are A operands in registers; if several warps split the columns of dK and dV, they
//   dK += dS^T Q          exchange P and dS through shared memory
//   dQ += dS K            dS through shared memory, the product into dq_accum in global memory
//
// Two barriers per step: Q and dO have arrived and all warps have finished the previous step; P and dS are in shared
// memory. With two stages the cp.async of the next Q and dO overlaps with a whole step. Registers: dK and dV 64 each, S
// and dP at most 32 each.
#pragma once

#include "portable/backward/dk_dv_accumulators.h"
#include "portable/backward/dq_accumulate.h"
#include "portable/backward/masked_queries.h"
#include "portable/backward/task.h"

namespace cuflash {

template <BackwardConfig C>
struct KeyTileBackward {
  using S = Shape<C>;
  using Ops = typename S::Ops;
  using Options = typename ScoreChunk<C>::Options;
  static constexpr bool kSharedBuffers = SharedTiles<C>::kSharedBuffers;
  // A warp takes P and dS of its own queries from registers.
  static constexpr bool kOwnFromRegisters = !kSharedBuffers && S::kScoreWarps == C.column_warps;
  // cp.async of the next queries is interleaved with the products of S if that is straight-line code of every warp.
  static constexpr bool kLoadsBetween =
      C.stages == 2 && S::kChunks == 1 && S::kScoreWarps == C.column_warps && size_of(C.element) == 2;

  static __device__ __forceinline__ bool wants(const void* gradient) { return C.all_gradients || gradient; }

  const BackwardParams& p;
  const SharedTiles<C> tiles;
  const TaskCoord& coord;
  const VisitedTiles& visited;
  DkDvAccumulators<C> acc;

  // The task coordinates are already in shared memory.
  __device__ __forceinline__ KeyTileBackward(const BackwardParams& p, SharedTiles<C> tiles)
      : p(p), tiles(tiles), coord(*tiles.task()), visited(coord.visited) {}

  __device__ __forceinline__ void run() {
    acc.clear();
    if constexpr (Options::kReadsMask) visit_visible_tiles();
    else if (visited.count() > 0) {
      start(Step{0, visited.tile(0), 0});
      for (int member = 0; member < coord.group; ++member) visit_head(member);
    }
    acc.store(p, coord, tiles);
  }

 private:
  using Step = QueryStep;

  __device__ __forceinline__ void start(const Step& first) {
    load_k<C>(p, coord, tiles);
    if constexpr (!kSharedBuffers) load_v<C>(p, coord, tiles), load_at_once(first);
    cp_async_commit();
    wait_for_copies();
    if ((Options::kReadsMask || visited.num_masked > 0) && has_not_finite<S::kThreads>(tiles.k()))
      tiles.task()->not_finite_keys = 1;
  }

  __device__ __forceinline__ void visit_head(int member) {
    const Options options(p.attention, coord.sequence, coord.b, coord.head_k * coord.group + member);
    int step = 0;
    const auto now = [&] { return Step{member, visited.tile(step), stage_of(member, step)}; };
    const auto next = [&] {
      const bool same_head = step + 1 < visited.count();
      const int next_member = same_head ? member : member + 1, next_step = same_head ? step + 1 : 0;
      return Step{next_member, visited.tile(next_step), stage_of(next_member, next_step)};
    };
    for (; step < visited.num_masked; ++step) visit_masked(now, next, options);
    for (; step < visited.count(); ++step) {
      begin_step(now, next);
      visit<TileMode::full>(now, next, options);
      end_step(next);
    }
  }
  __device__ __forceinline__ int stage_of(int member, int step) const {
    return C.stages == 2 ? (member * visited.count() + step) & 1 : 0;
  }

  // Visits the query tiles that the mask does not hide, head by head.
  __device__ __forceinline__ void visit_visible_tiles() {
    MaskedQueries<C> queries(p.attention, coord);
    if (threadIdx.x < 32) queries.count();
    Step current = queries.next({0, 0, C.stages == 2 ? 1 : 0}), upcoming = current;
    if (current.member == coord.group) return;
    start(current);
    const auto now = [&] { return current; };
    const auto next = [&] { return upcoming; };
    for (int member = current.member; member < coord.group; member = current.member) {
      const Options options(p.attention, coord.sequence, coord.b, coord.head_k * coord.group + member);
      for (; current.member == member; current = upcoming) {
        const bool full = (C.options & kBias) == 0 && queries.is_full;  // a bias may hide a pair
        upcoming = queries.next(current);
        if (C.ordered && threadIdx.x < 32)
          tiles.task()->dq_before = visible_tiles_before<C>(p.attention, coord, current);
        if (full) {
          begin_step(now, next);
          visit<TileMode::full>(now, next, options);
          end_step(next);
        } else {
          visit_masked(now, next, options);
        }
      }
    }
  }

  template <class Now, class Next>
  __device__ __forceinline__ void visit_masked(const Now& now, const Next& next, const Options& options) {
    begin_step(now, next);
    if (coord.not_finite_keys || tiles.stats(now().stage)[flag_at(C)] != 0)
      visit<TileMode::guarded>(now, next, options);
    else visit<TileMode::masked>(now, next, options);
    end_step(next);
  }

  __device__ __forceinline__ QueriesToLoad<C> queries_of(const Step& step) const {
    return {p, coord, step.member, step.tile, step.stage};
  }
  __device__ __forceinline__ void load_at_once(const Step& step) {
    const QueriesToLoad<C> queries = queries_of(step);
    queries.load_q(p, tiles);
    queries.load_dout(p, tiles);
    queries.load_stats(tiles);
    cp_async_commit();
  }

  template <class Now, class Next>
  __device__ __forceinline__ void begin_step(const Now& now, const Next& next) {
    if constexpr (kSharedBuffers) {
      const QueriesToLoad<C> queries = queries_of(now());
      __syncthreads();
      load_k<C>(p, coord, tiles);
      queries.load_q(p, tiles);
      queries.load_stats(tiles);
      cp_async_commit();
    }
    wait_for_copies();
    if constexpr (C.stages == 2 && !kLoadsBetween) load_at_once(next());
  }
  template <class Next>
  __device__ __forceinline__ void end_step(const Next& next) {
    if constexpr (C.stages == 1) {
      __syncthreads();
      load_at_once(next());
    }
  }

  // Processes one query tile.
  template <TileMode kMode, class Now, class Next>
  __device__ __forceinline__ void visit(const Now& now, const Next& next, const Options& options) {
    constexpr Rows kRows = kMode == TileMode::guarded ? Rows::finite_only : Rows::any;
    // Indices are recomputed rather than kept, to save registers for the accumulators.
    score<kMode>(now, next, options);
    __syncthreads();
    if constexpr (S::kScoreWarps > 1 || !kOwnFromRegisters)
      accumulate_scores_of_others<kRows>(now().stage, now().member, now().tile);
    if (wants(p.dq_accum)) add_to_dq<C, kRows>(p, coord, tiles, now().member, now().tile);
  }

  template <TileMode kMode, class Now, class Next>
  __device__ __forceinline__ void score(const Now& now, const Next& next, const Options& options) {
    constexpr Rows kRows = kMode == TileMode::guarded ? Rows::finite_only : Rows::any;
    const int stage = now().stage, tile = now().tile, i = tile * C.tile_q, j = coord.k_first + S::first_key();
    const auto* stats = tiles.stats(stage);
    const VisibleQueries<C> visible(p.attention, coord.sequence, i, coord.k_first);
#pragma unroll 1
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      const int first = S::column_warp() * S::kQueries + chunk * S::kChunk;
      ScoreChunk<C> scores;
      if constexpr (kLoadsBetween) {
        const QueriesToLoad<C> queries = queries_of(next());
        scores.template compute_p<kMode>(tiles.k(), tiles.q(stage), stats, first, options, visible, i, j,
                                         [&](Slice slice) { queries.load_slice(p, tiles, slice); });
        cp_async_commit();
      } else if (S::scores_queries()) {
        scores.template compute_p<kMode>(tiles.k(), tiles.q(stage), stats, first, options, visible, i, j);
      }
      if constexpr (kSharedBuffers) reload_v_and_dout(now().member, tile);
      if (!S::scores_queries()) break;
      scores.template compute_ds<kMode, Gradient::of_product>(tiles.v(), tiles.dout(stage), stats, first, options, i,
                                                              j);
      const OperandTiles<C.element, S::kKeyTiles, S::kQueryTiles> p_tiles(scores.p), ds_tiles(scores.ds);
      // Finite queries are accumulated as in any other mode, so that hidden values change no bit of the result.
      const bool use_select = kMode == TileMode::guarded && stats[flag_at(C)] != 0;
      if constexpr (kMode == TileMode::guarded && kOwnFromRegisters) {
        // P shares the buffer of dS unless it has its own: both belong to this warp.
        if (use_select && wants(p.dv.data)) {
          const typename S::ScoreTile p_tile = score_tiles(C) == 2 ? tiles.p() : tiles.ds();
          p_tiles.store(p_tile, S::first_key(), first);
          __syncwarp();
          const int warp = new_thread_id() / 32;
          acc.template accumulate_selected_dv<S::kChunk>(tiles.dout(stage), S::first_key(warp), S::column_warp(warp),
                                                         first, p_tile);
          __syncwarp();
        }
      }
      ds_tiles.store(tiles.ds(), S::first_key(), first);
      if constexpr (score_tiles(C) == 2) p_tiles.store(tiles.p(), S::first_key(), first);
      if constexpr (kOwnFromRegisters) {
        if (!use_select && wants(p.dv.data))
          acc.template add_to_dv<S::kChunk>(tiles.dout(stage), S::column_warp(), first,
                                            [&](int m, int k) { return p_tiles.operand(m, k); });
        if (wants(p.dk.data))
          acc.template add_to_dk<S::kChunk, kRows>(tiles.q(stage), S::column_warp(), first,
                                                   [&](int m, int k) { return ds_tiles.operand(m, k); });
      }
    }
  }

  template <Rows kRows>
  __device__ __forceinline__ void accumulate_scores_of_others(int stage, int member, int tile) {
    constexpr int kOthers = kOwnFromRegisters ? S::kScoreWarps - 1 : S::kScoreWarps;
    const int warp = new_thread_id() / 32, column_warp = S::column_warp(warp);
    const auto first_of = [=](int other) {
      return (kOwnFromRegisters ? (column_warp + 1 + other) % S::kScoreWarps : other) * S::kQueries;
    };
    const auto operand_in = [=](typename S::ScoreTile scores, int first) {
      return [=](int m, int k) {
        return Ops::load_a_paired(scores, S::first_key(warp) + 16 * m, first + k * Ops::kDepth);
      };
    };
    const bool use_select = kRows == Rows::finite_only && tiles.stats(stage)[flag_at(C)] != 0;
    if (wants(p.dv.data))
#pragma unroll
      for (int other = 0; other < kOthers; ++other) {
        if (use_select)
          acc.template accumulate_selected_dv<S::kQueries>(tiles.dout(stage), S::first_key(warp), column_warp,
                                                           first_of(other), tiles.p());
        else
          acc.template add_to_dv<S::kQueries>(tiles.dout(stage), column_warp, first_of(other),
                                              operand_in(tiles.p(), first_of(other)));
      }
    if constexpr (kSharedBuffers) reload_k_and_q(member, tile);
    if (wants(p.dk.data))
#pragma unroll
      for (int other = 0; other < kOthers; ++other)
        acc.template add_to_dk<S::kQueries, kRows>(tiles.q(stage), column_warp, first_of(other),
                                                   operand_in(tiles.ds(), first_of(other)));
  }

  // Called by all threads, with kSharedBuffers: replaces the contents of the shared buffers.
  __device__ __forceinline__ void reload_v_and_dout(int member, int tile) {
    __syncthreads();
    load_v<C>(p, coord, tiles);
    QueriesToLoad<C>(p, coord, member, tile, 0).load_dout(p, tiles);
    cp_async_commit();
    wait_for_copies();
  }
  __device__ __forceinline__ void reload_k_and_q(int member, int tile) {
    __syncthreads();
    load_k<C>(p, coord, tiles);
    QueriesToLoad<C>(p, coord, member, tile, 0).load_q(p, tiles);
    cp_async_commit();
    wait_for_copies();
  }
};

template <BackwardConfig C>
__device__ __forceinline__ void backward(const BackwardParams& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const SharedTiles<C> tiles{memory};
  if (threadIdx.x == 0) *tiles.task() = cta_task<C>(p);
  __syncthreads();
  if (tiles.task()->written > 0) KeyTileBackward<C>(p, tiles).run();
}

}  // namespace cuflash
