// What a warpgroup that has 64 queries makes of scores in its registers: queries in rows, and keys in columns.
#pragma once

#include "portable/backward/exponentiate.h"
#include "ptx/warpgroup.h"
#include "sm90/lane_coord.h"
#include "sm90/tile_info.h"

namespace cuflash {

template <Sm90DqConfig C>
struct DqScores {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kShared = shared_config(C);
  static constexpr int kKeyTiles = C.tile_k / 8, kSteps = C.tile_k / 16;
  using Scores = Accumulator<float>[kKeyTiles];
  using OperandA = unsigned[kSteps][4];  // operands of the products that sum over keys

  // Of one of the two rows r of a lane: element e of tile n.
  static __device__ __forceinline__ float& at(Scores& s, int r, int n, int e) { return s[n].x[2 * r + e]; }

  static __device__ __forceinline__ LaneCoord lane_coord() { return lane_coord_in_warpgroup(); }
  static __device__ __forceinline__ PositionMask<kWarpgroupRows, C.tile_k> mask_of(const AttentionParams& a,
                                                                                   const TileInfo& info, int tile) {
    const LaneCoord lane = lane_coord();
    return {a, info.sequence(), info.q_first, tile * C.tile_k, lane.row, lane.column};
  }

  // What is known of the two rows of a lane, for all keys. Reads of shared memory wait for the products' own.
  struct Rows {
    float lse[2], delta[2];
    __device__ explicit Rows(const float* stats) {
      const int row = lane_coord().row;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        lse[r] = stats[lse_at(kShared, row + 8 * r)], delta[r] = stats[delta_at(kShared, row + 8 * r)];
    }
  };

  // Weights in place of scores. kEdge: some pair may be hidden, and is selected away, whatever its score is.
  template <bool kApplyMask>
  static __device__ __forceinline__ void exponentiate(Scores& s, const AttentionParams& a, const TileInfo& info,
                                                      int tile, const Rows& rows, float factor) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) at(s, r, n, e) = exp2_of(at(s, r, n, e) * factor - rows.lse[r]);
    if constexpr (kApplyMask) hide(s, mask_of(a, info, tile));
  }
  // The same of rows whose LSE may be large: see weigh_any_size.
  static __device__ __forceinline__ void exponentiate_any_size(Scores& s, const AttentionParams& a,
                                                               const TileInfo& info, int tile, const float* stats,
                                                               float factor) {
    const int row = lane_coord().row;
    const auto* large_rows = reinterpret_cast<const unsigned*>(stats + large_rows_at(kShared));
    const auto unit = static_cast<float>(a.scale), to_power = static_cast<float>(kLog2e);
    const bool any = has_large_rows<kShared>(stats);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = row + 8 * r;
      const float lse = stats[lse_at(kShared, query)];
      const bool large = any && (large_rows[query / 32] >> query % 32 & 1) != 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = at(s, r, n, e);
          x = exp2_of(large ? (rounded_product(x, unit) - lse) * to_power : x * factor - lse);
        }
    }
    hide(s, mask_of(a, info, tile));
  }
  static __device__ __forceinline__ void hide(Scores& probs, const PositionMask<kWarpgroupRows, C.tile_k>& mask) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) at(probs, r, n, e) = mask.sees(8 * r, 8 * n + e) ? at(probs, r, n, e) : 0.0f;
  }

  // Whether this lane has a score that is not finite, of a query that exists. A key with an element that is not finite has
  // no other scores, and each query has one with it: so each warp finds such a key.
  static __device__ __forceinline__ bool has_not_finite_score(Scores& s, const TileInfo& info) {
    float zero[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) zero[r] = at(s, r, n, e) * 0.0f + zero[r];
    const int first = info.q_first + lane_coord().row;
    return (first < info.len_q && !(zero[0] == 0)) || (first + 8 < info.len_q && !(zero[1] == 0));
  }

  // dS = P (dP - delta), narrow. A weight of exactly 0, hidden or too small to be told from it, passes nothing on, whatever
  // dP is; where all is visible there is none that has to be.
  template <bool kApplyMask>
  static __device__ __forceinline__ void differentiate(OperandA& ds, Scores& probs, Scores& dp, const Rows& rows) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        float d[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float prob = at(probs, r, n, e);
          d[e] = prob * (at(dp, r, n, e) - rows.delta[r]);
          if (kApplyMask && prob == 0) d[e] = 0;
        }
        ds[n / 2][n % 2 * 2 + r] = pack<E>(d[0], d[1]);
      }
  }

  // The same in two steps, for which dP may have the place of scores: weights are narrow meanwhile.
  static __device__ __forceinline__ void differentiate_narrow(OperandA& probs, Scores& dp, const float* stats) {
    const float* delta = stats + delta_at(kShared, lane_coord().row);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        unsigned& two = probs[n / 2][n % 2 * 2 + r];
        float d[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float prob = widen<E>(static_cast<unsigned short>(e == 0 ? two : two >> 16));
          d[e] = prob == 0 ? 0.0f : prob * (at(dp, r, n, e) - delta[8 * r]);
        }
        two = pack<E>(d[0], d[1]);
      }
  }
};

}  // namespace cuflash
