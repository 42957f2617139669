// Elementwise steps of the backward consumers on their accumulators: masks, P from S and dS from dP. Keys are rows,
// queries are columns.
#pragma once

#include "portable/backward/exponentiate.h"
#include "portable/backward/visited_queries.h"
#include "ptx/warpgroup.h"
#include "sm90/lane_coord.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct KeyScores {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kShared = shared_config(C);
  static constexpr int kQueryTiles = C.tile_q / 8, kSteps = C.tile_q / 16;
  static constexpr int kDelta = delta_at(kShared, 0);
  using Scores = Accumulator<float>[1][kQueryTiles];
  using OperandA = unsigned[kSteps][4];  // A operand of the wgmma that reduces over queries

  // Within the key tile: keys are rows.
  static __device__ __forceinline__ LaneCoord lane_coord() {
    return lane_coord_of(split_dk_dv(C) ? new_thread_id() % kWarpgroupThreads : new_thread_id());
  }

  // Selects hidden scores to -inf, whatever they are.
  static __device__ __forceinline__ void hide(Scores& s, const AttentionParams& a, const TaskCoord& coord, int tile) {
    const LaneCoord lane = lane_coord();
    const VisibleQueries<kShared> visible(a, coord.sequence, tile * C.tile_q, coord.k_first, lane.row);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int query = lane.column + 8 * n + x % 2;
        const bool seen = query >= visible.begin[0][x / 2] && query < visible.end[0][x / 2];
        s[0][n].x[x] = seen ? s[0][n].x[x] : minus_infinity<float>();
      }
  }

  // Element x of tile n.
  template <Element kStored>
  static __device__ __forceinline__ float element_at(const OperandA& probs, int n, int x) {
    const unsigned two = probs[n / 2][n % 2 * 2 + x / 2];
    return widen<kStored>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
  }

  // LSE or delta of the queries whose scores a lane holds.
  using RowValues = Pair<float>[kQueryTiles];
  // address: shared address of the value of the lane's first query.
  static __device__ __forceinline__ void load_rows(RowValues& x, unsigned address) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) load_pair_from_shared(address + 32 * n, x[n].x[0], x[n].x[1]);
  }

  // exponentiate_small for a positive factor: -inf becomes 0 without a select.
  static __device__ __forceinline__ void exponentiate(Scores& s, const RowValues& lse, float factor) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) s[0][n].x[x] = exp2_of(s[0][n].x[x] * factor - lse[n].x[x % 2]);
  }
  // The same with conversion to 16 bits, in one loop, so that score registers are free early.
  static __device__ __forceinline__ void exponentiate_and_narrow(OperandA& probs, const Scores& s, const RowValues& lse,
                                                                 float factor) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      float p[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) p[x] = exp2_of(s[0][n].x[x] * factor - lse[n].x[x % 2]);
      probs[n / 2][n % 2 * 2] = pack<E>(p[0], p[1]), probs[n / 2][n % 2 * 2 + 1] = pack<E>(p[2], p[3]);
    }
  }
  // dS = P (dP - delta), converted to 16 bits.
  static __device__ __forceinline__ void differentiate_and_narrow(OperandA& ds, const Scores& dp, const OperandA& probs,
                                                                  const RowValues& delta) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      float d[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) d[x] = element_at<E>(probs, n, x) * (dp[0][n].x[x] - delta[n].x[x % 2]);
      ds[n / 2][n % 2 * 2] = pack<E>(d[0], d[1]), ds[n / 2][n % 2 * 2 + 1] = pack<E>(d[2], d[3]);
      // Keeps ptxas from scheduling all elements at once, for which it lacks one register in f16.
      if (E == Element::f16 && n + 1 == kQueryTiles / 2) __syncwarp();
    }
  }

  // A probability of exactly 0, hidden or underflowed, yields a dS of 0 whatever dP is. Works on 16-bit operands.
  static __device__ __forceinline__ void zero_where_p_is_zero(OperandA& ds, const OperandA& probs) {
#pragma unroll
    for (int n = 0; n < 4 * kSteps; ++n) {
      const unsigned two = probs[n / 4][n % 4];
      ds[n / 4][n % 4] &= E == Element::bf16 ? not_zero_mask_bf16(two) : not_zero_mask_f16(two);
    }
  }

  // Replaces dP by dS = P (dP - delta). A probability of exactly 0, hidden or underflowed, yields 0 whatever dP is.
  template <TileMode kMode, Element kStored = E>
  static __device__ __forceinline__ void differentiate(Scores& dp, const OperandA& probs, const RowValues& delta) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float prob = element_at<kStored>(probs, n, x);
        float& value = dp[0][n].x[x];
        value = prob * (value - delta[n].x[x % 2]);
        if (kMode != TileMode::full && prob == 0) value = 0;
      }
  }
};

}  // namespace cuflash
