// Consumer mainloop for many rows: each consumer warpgroup computes 64 rows of a block with wgmma, which reads K and V
// from shared memory. The softmax of the next block overlaps with the P V product of the current one. The block after
// the last one of a key tile is the first one with the next key tile.
//
//   issue S = Q K^T of the next block | issue O += P V | wait for S | softmax of S | wait for O | rescale O of the next
//   block if its row maxima moved | P = weights
#pragma once

#include "kv/epilogue.h"
#include "kv/tma_keys.h"
#include "sm90/products.h"

namespace cuflash {

template <KvConfig C>
struct WarpgroupAttention {
  static constexpr Element E = C.element;
  static constexpr int kSteps = C.tile_k / 16;
  static_assert(C.row_warps % 4 == 0 && C.key_warps == 1 && C.column_warps == 1 && !C.v_in_k);
  using Work = KvWork<C>;
  using Scores = typename Work::Scores;
  using Output = typename Work::Output;
  using Weights = unsigned[kSteps][4];
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;
  using OutputProduct = WarpgroupProduct<E, C.dim_v, true>;

  // The warpgroup's 64 rows of a block.
  struct Block {
    int number;
    typename Work::Rows lane_rows;
    CachedShiftSoftmax<float, 1> softmax;
    Output o = {};

    __device__ Block(const Work& work, int number)
        : number(number),
          lane_rows(work.p, work.sequence, work.item, work.rows, lane_row(number)),
          softmax(Work::Rows::scale_log2(work.a)) {}
  };

  const Work& work;
  TmaKeys<C>& keys;

  // The warpgroup's first row in a block.
  __device__ static int group_row() {
    return uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads) * kWarpgroupRows;
  }
  // The lane's first row in a block.
  __device__ static int lane_row(int block) { return block * block_rows(C) + Work::lane_row(); }
  // Whether the warpgroup has rows in this block that exist.
  __device__ bool has_block(int number) const {
    return work.rows.first + number * block_rows(C) + group_row() < work.rows.end;
  }

  __device__ __forceinline__ void issue_scores(Scores& s, const Block& block) const {
    const auto q = rematerialize(keys.q_tile());
    const int first = block.number * block_rows(C) + group_row();
    issue_wgmma_ss<ScoreProduct, C.dim_qk>(s[0], q, first, keys.k_tile(keys.ring.stage));
  }
  __device__ __forceinline__ void issue_output(Output& o, Weights& w, int stage) const {
    issue_wgmma_rs<OutputProduct>(o[0], w, keys.v_tile(stage));
  }

  // Turns the scores of key tile n into weights. Returns whether O must be rescaled, and by what.
  __device__ __forceinline__ bool softmax_step(int n, Block& block, Scores& s, float (&correction)[2]) const {
    block.lane_rows.apply(s, work.first_key(n) + lane_id() % 4 * 2, work.every_row_sees(n));
    const bool rescales = block.softmax.update_max(s, [&](int r, float x) { correction[r] = x; });
    block.softmax.exponentiate(s);
    return rescales;
  }
  // As in sm90/forward/consumer.h: the never-taken loop keeps the compiler from hoisting this wait above the softmax.
  __device__ __forceinline__ void wait_after_softmax() const {
    do wgmma_wait<0>();
    while (work.a.group == 0);
  }

  // Prologue of the pipeline: the scores of the first tile, with nothing to overlap.
  __device__ __forceinline__ void begin(Block& block, Weights& w) const {
    Scores s;
    issue_scores(s, block);
    wgmma_wait<0>();
    fence_operands(s);
    float correction[2];
    softmax_step(0, block, s, correction);
    narrow<E>(w, s[0]);
  }
  // Advances from `block`, whose weights are in w and whose values are in `stage`, to `next` with key tile n.
  // kReleases: `block` is the last reader of this stage.
  template <bool kReleases>
  __device__ __forceinline__ void advance(Block& block, int stage, Block& next, int n, Weights& w) const {
    Scores s;
    issue_scores(s, next);
    issue_output(block.o, w, stage);
    wgmma_wait<1>();
    fence_operands(s);
    float correction[2];
    const bool rescales = softmax_step(n, next, s, correction);
    wait_after_softmax();
    fence_operands(block.o), fence_operands(w);
    if constexpr (kReleases) keys.release(stage);
    if (rescales) {
#pragma unroll
      for (int r = 0; r < 2; ++r) next.softmax.rescale(next.o, r, correction[r]);
    }
    narrow<E>(w, s[0]);
  }
  __device__ __forceinline__ void end(Block& block, int stage, Weights& w) const {
    issue_output(block.o, w, stage);
    wgmma_wait<0>();
    fence_operands(block.o), fence_operands(w);
  }

  // All key tiles, for warpgroups with two blocks, one, or none. All warpgroups wait for a tile at the same program
  // point, because all consumers patch rows that are not in the cache, between barriers, and compute-sanitizer reports
  // a barrier that warpgroups reach at different points as divergence.
  __device__ __forceinline__ void run_mainloop(Block& first, Block& last, bool has_first, bool has_last) {
    if (work.count() == 0) return;
    Weights w;
    keys.wait(0);
    if (has_first) begin(first, w);
#pragma unroll 1
    for (int n = 0;; ++n) {
      const int stage = keys.ring.stage;
      if (has_last) advance<false>(first, stage, last, n, w);
      if (n + 1 == work.count()) {
        if (has_last) end(last, stage, w);
        else if (has_first) end(first, stage, w);
        return;
      }
      keys.ring.advance();
      keys.wait(n + 1);
      if (has_last) advance<true>(last, stage, first, n + 1, w);
      else if (has_first) advance<true>(first, stage, first, n + 1, w);
      else keys.release(stage);
    }
  }

  __device__ __forceinline__ void store_partials(Block& block) const {
    Epilogue<C>(work).store_warp_partials(block.softmax, block.o, lane_row(block.number));
  }
  // A block without rows stores no partials: missing rows are written as empty, whatever the partials are.
  __device__ __forceinline__ void attend() {
    constexpr bool kTwo = row_blocks(C) == 2;
    const bool has_first = has_block(0), has_last = kTwo && has_block(1);
    Block first(work, 0), last(work, kTwo ? 1 : 0);
    run_mainloop(first, last, has_first, has_last);
    keys.sync_consumers();
    if (has_first) store_partials(first);
    if (has_last) store_partials(last);
  }
};

}  // namespace cuflash
