// Many rows over a cache: a warpgroup multiplies 64 rows of each block of the tile at a time, and keys and values are read
// from shared memory by the products themselves.
#pragma once

#include "cache/boxed_keys.h"
#include "cache/sums.h"
#include "hopper/pinned.h"

namespace cuflash {

template <CacheConfig C>
struct WarpgroupAttention {
  static constexpr Element E = C.element;
  static constexpr int kSteps = C.tile_k / 16;
  static_assert(C.row_warps % 4 == 0 && C.key_warps == 1 && C.column_warps == 1 && !C.v_in_k);
  using Work = CacheWork<C>;
  using Scores = typename Work::Scores;
  using Output = typename Work::Output;
  using Weights = unsigned[kSteps][4];
  using ScoreProduct = WarpgroupProduct<E, C.tile_k, false>;
  using OutputProduct = WarpgroupProduct<E, C.dim_v, true>;

  // The 64 rows of a block that are the warpgroup's.
  struct Block {
    int number;
    typename Work::Rows lane_rows;
    SteadySoftmax<float, 1> softmax;
    Output o = {};

    __device__ Block(const Work& work, int number)
        : number(number),
          lane_rows(work.p, work.sequence, work.at, work.rows, lane_row(number)),
          softmax(Work::Rows::factor(work.a)) {}
  };

  const Work& work;
  BoxedKeys<C>& keys;

  // The first row of a block that is the warpgroup's.
  __device__ static int group_row() {
    return uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads) * kWarpgroupRows;
  }
  // The first row of a block that is the lane's.
  __device__ static int lane_row(int block) { return block * block_rows(C) + Work::lane_row(); }
  // Whether a row of this block is the warpgroup's and exists.
  __device__ bool has_block(int number) const {
    return work.rows.first + number * block_rows(C) + group_row() < work.rows.end;
  }

  __device__ __forceinline__ void multiply_keys(Scores& s, const Block& block) const {
    auto q = keys.q_tile();
    asm volatile("" : "+r"(q.address));  // or all of its descriptors stay in registers
    const auto k = keys.k_tile(keys.ring.stage);
    const int first = block.number * block_rows(C) + group_row();
    products_fence();
    ScoreProduct::start(s[0], q.along_rows(0, first), k.along_rows(0));
#pragma unroll
    for (int step = 1; step < C.dim_qk / 16; ++step)
      ScoreProduct::add(s[0], q.along_rows(step, first), k.along_rows(step));
    products_commit();
  }
  __device__ __forceinline__ void add_values(Output& o, Weights& w) const {
    const auto v = keys.v_tile(keys.ring.stage);
    pin_all(w);
    products_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) OutputProduct::add(o[0], w[step], v.across_rows(step));
    products_commit();
  }
  static __device__ __forceinline__ void narrow_weights(Weights& w, const Scores& s) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto a = Operands<E>::from_accumulators(&s[0][2 * step]);
#pragma unroll
      for (int n = 0; n < 4; ++n) w[step][n] = a.r[n];
    }
  }

  __device__ __forceinline__ void attend(int n, Block& block) const {
    Scores s;
    multiply_keys(s, block);
    products_wait<0>();
    pin_all(s);
    block.lane_rows.change(s, work.first_key(n) + lane_id() % 4 * 2, work.every_row_sees(n));
    block.softmax.move(s, [&](int r, float shrink) { block.softmax.rescale(block.o, r, shrink); });
    block.softmax.weigh(s);
    Weights w;
    narrow_weights(w, s);
    add_values(block.o, w);
    products_wait<0>();
    pin_all(block.o), pin_all(w);
  }

  // Rows that do not exist are written as such, whatever was summed.
  template <class... Blocks>
  __device__ __forceinline__ void attend_with(Blocks&&... blocks) {
#pragma unroll 1
    for (int n = 0; n < work.count(); ++n) {
      keys.wait(n);
      (attend(n, blocks), ...);
      keys.leave();
    }
    keys.wait_for_readers();
    (CacheSums<C>{work}.share(blocks.softmax, blocks.o, lane_row(blocks.number)), ...);
  }
  __device__ __forceinline__ void attend() {
    if constexpr (row_blocks(C) == 2) {
      if (has_block(1)) return attend_with(Block(work, 0), Block(work, 1));
    }
    if (has_block(0)) return attend_with(Block(work, 0));
    attend_with();
  }
};

}  // namespace cuflash
