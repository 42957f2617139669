// Elementwise steps of the consumers of dQ and dBias on their accumulators: P from S and dS from dP. Queries are rows,
// keys are columns.
#pragma once

#include "attn/score.h"
#include "portable/backward/exponentiate.h"
#include "ptx/warpgroup.h"
#include "sm90/backward/options.h"
#include "sm90/lane_coord.h"
#include "sm90/pair_bits.h"
#include "sm90/step_info.h"
#include "sm90/tile_info.h"

namespace cuflash {

// kOfBias: dS is the gradient of the bias, before the derivative of softcap.
template <Sm90DqConfig C, bool kOfBias = false>
struct DqScores {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kPortable = portable_view(C);
  static constexpr int kKeyTiles = C.tile_k / 8, kSteps = C.tile_k / 16;
  using Scores = Accumulator<float>[kKeyTiles];
  using OperandA = unsigned[kSteps][4];  // A operand of the wgmma that reduces over keys
  using Options = BackwardOptions<E, C.options>;
  // Head sizes above 128 lack registers for the choice between polynomial and exponential, and use tanh instead; P
  // differs by less than 1e-4.
  static constexpr bool kPolynomialSoftcap = Options::kPolynomialSoftcap && C.dim_qk <= 128 && C.dim_v <= 128;
  static_assert(C.options == 0 || C.tile_k == 64);  // one bit per pair

  // Element e of tile n in row r = 0, 1 of a lane.
  static __device__ __forceinline__ float& at(Scores& s, int r, int n, int e) { return s[n].x[2 * r + e]; }

  static __device__ __forceinline__ LaneCoord lane_coord() { return lane_coord_in_warpgroup(); }
  static __device__ __forceinline__ PositionMask<kWarpgroupRows, C.tile_k> mask_of(const AttentionParams& a,
                                                                                   const TileInfo& info, int tile) {
    const LaneCoord lane = lane_coord();
    return {a, info.sequence(), info.q_first, tile * C.tile_k, lane.row, lane.column};
  }

  // Row statistics of the lane's two rows, kept in registers for all keys because reads of shared memory queue behind
  // those of wgmma.
  struct Rows {
    float lse[2], delta[2];
    __device__ explicit Rows(const float* stats) {
      const int row = lane_coord().row;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        lse[r] = stats[lse_at(kPortable, row + 8 * r)], delta[r] = stats[delta_at(kPortable, row + 8 * r)];
    }
  };

  // Replaces scores by probabilities. kApplyMask: pairs may be hidden; the probability of a hidden pair is selected to
  // be 0, whatever its score is.
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
  // Replaces scores by the factors of dS, in kernels with options.
  template <bool kApplyMask>
  static __device__ __forceinline__ void exponentiate_pairs(Scores& s, const Sm90BackwardParams& p,
                                                            const TileInfo& info, const StepInfo& head, int tile,
                                                            const Rows& rows, unsigned lane_bias, unsigned seen) {
    const AttentionParams& a = p.backward.attention;
    if constexpr (kPolynomialSoftcap) {
      exponentiate_capped(s, p.factors.cap, rows);
      if constexpr (kApplyMask) hide(s, seen & visible_pairs(a, info, tile));
      return;
    }
    float slope = 0, distance = 0;
    if constexpr (Options::kHasAlibi) slope = head.slope, distance = lane_distance(info, tile);
    Options::apply_softcap(s, a);
    replace_by_factors(s, lane_bias, kept_pairs_of(a, info, head, tile),
                       [&](float score, float bias, int r, int n, int e) {
                         float shift = -rows.lse[r];
                         if constexpr (Options::kHasBias) shift += bias * static_cast<float>(kLog2e);
                         if constexpr (Options::kHasAlibi)
                           shift -= slope * fabsf(distance + static_cast<float>(8 * r - 8 * n - e));
                         typename Options::Exponent pair = Options::exponent(p, score, shift);
                         if constexpr (kOfBias) pair.slope = 1;
                         return pair;
                       });
    if constexpr (kApplyMask) hide(s, seen & visible_pairs(a, info, tile));
  }
  static __device__ __forceinline__ void exponentiate_capped(Scores& s, const CapDerivative& cap, const Rows& rows) {
    const auto replace = [&]<bool kInRange>() {
      replace_by_factors(s, 0, 0, [&](float x, float, int r, int, int) {
        return Options::template capped_exponent<kInRange>(cap, x, -rows.lse[r]);
      });
    };
    float largest = 0;
#pragma unroll
    for (int n = 0; n < 4 * kKeyTiles; ++n) largest = larger(largest, fabs(s[n / 4].x[n % 4]));
    if (!__any_sync(0xffffffffu, largest >= cap.exponent.limit)) replace.template operator()<true>();
    else replace.template operator()<false>();
  }
  // exponentiate_pairs() for rows whose LSE may be large, from scores that are computed as forward computes them.
  static __device__ __forceinline__ void exponentiate_pairs_guarded(Scores& s, const Sm90BackwardParams& p,
                                                                    const TileInfo& info, const StepInfo& head,
                                                                    int tile, const float* stats, unsigned lane_bias,
                                                                    unsigned seen) {
    const AttentionParams& a = p.backward.attention;
    const int row = lane_coord().row;
    const float distance = Options::kHasAlibi ? lane_distance(info, tile) : 0;
    const ScoreOptions<E, C.options, OptionSet::exact> options(a, info.sequence(), info.b, info.h);
    const auto* large_rows = reinterpret_cast<const unsigned*>(stats + large_rows_at(kPortable));
    replace_by_factors(s, lane_bias, kept_pairs_of(a, info, head, tile),
                       [&](float dot, float bias, int r, int n, int e) -> typename Options::Exponent {
                         const int query = row + 8 * r;
                         const bool large = (large_rows[query / 32] >> query % 32 & 1) != 0;
                         const float lse = stats[lse_at(kPortable, query)];
                         if constexpr (kPolynomialSoftcap)
                           return Options::template capped_exponent<false>(
                               p.factors.cap, dot, large ? -lse * static_cast<float>(kLog2e) : -lse);
                         float t = options.argument(dot);
                         if constexpr (Options::kHasSoftcap) t = options.tanh_value(t);
                         const float penalty =
                             Options::kHasAlibi ? options.penalty(distance + static_cast<float>(8 * r - 8 * n - e)) : 0;
                         return {guarded_exponent(options, options.score(t, penalty, bias), lse, large),
                                 Options::kHasSoftcap && !kOfBias ? 1 - t * t : 1};
                       });
    hide(s, seen & visible_pairs(a, info, tile));
  }
  // Replaces scores by factors of dS. exponent(score, bias, r, n, e) returns the exponent of a pair and the derivative
  // of softcap. lane_bias: shared address of the lane's part of the bias, for ldmatrix; its 16-byte pieces are
  // swizzled.
  template <class Exponent>
  static __device__ __forceinline__ void replace_by_factors(Scores& s, unsigned lane_bias, unsigned kept,
                                                            Exponent exponent) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned biases[4] = {};
      if constexpr (Options::kHasBias) ldmatrix_x4(lane_bias ^ step * 32, biases);
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int n = 2 * step + m / 2, r = m % 2;
          float& x = at(s, r, n, e);
          const float bias = widen<E>(static_cast<unsigned short>(e == 0 ? biases[m] : biases[m] >> 16));
          const typename Options::Exponent pair = exponent(x, bias, r, n, e);
          const float factor = exp2_of(pair.value) * pair.slope;
          x = !Options::kHasDropout || (kept & pair_bit(r, n, e)) != 0 ? factor : -factor;
        }
    }
  }
  static __device__ __forceinline__ unsigned visible_pairs(const AttentionParams& a, const TileInfo& info, int tile) {
    const auto mask = mask_of(a, info, tile);
    const auto bits = [&](int r) { return columns_between(mask.low + 8 * r, min(mask.high + 8 * r, mask.length)); };
    return bits(0) | bits(1) << 16;
  }
  static __device__ __forceinline__ void hide(Scores& factors, unsigned seen) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          at(factors, r, n, e) = (seen & pair_bit(r, n, e)) != 0 ? at(factors, r, n, e) : 0.0f;
  }
  // Position of the lane's first query minus that of its first key.
  static __device__ __forceinline__ float lane_distance(const TileInfo& info, int tile) {
    const LaneCoord lane = lane_coord();
    return static_cast<float>(int64{info.q_first} + info.shift - int64{tile} * C.tile_k + lane.row - lane.column);
  }
  static __device__ __forceinline__ unsigned kept_pairs_of(const AttentionParams& a, const TileInfo& info,
                                                           const StepInfo& head, int tile) {
    if constexpr (!Options::kHasDropout) return 0;
    const LaneCoord lane = lane_coord();
    return kept_pairs_of_queries(head.stream, a.dropout_rule, info.q_first + lane.row, tile * C.tile_k + lane.column);
  }
  // exponentiate() for rows whose LSE may be large, in kernels without options; see exponentiate_any_size in
  // portable/backward/exponentiate.h.
  static __device__ __forceinline__ void exponentiate_any_size(Scores& s, const AttentionParams& a,
                                                               const TileInfo& info, int tile, const float* stats,
                                                               float factor) {
    const int row = lane_coord().row;
    const auto* large_rows = reinterpret_cast<const unsigned*>(stats + large_rows_at(kPortable));
    const auto unit = static_cast<float>(a.scale), to_power = static_cast<float>(kLog2e);
    const bool any = has_large_rows<kPortable>(stats);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = row + 8 * r;
      const float lse = stats[lse_at(kPortable, query)];
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

  // Whether this lane has a non-finite score of an existing query. A key with a non-finite element has no finite score,
  // and every query has a score with it, so every warp detects such a key.
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

  // dS = P (dP - delta), converted to 16 bits, from P or the factors of dS. A probability of exactly 0, hidden or
  // underflowed, yields 0 whatever dP is. A fully visible tile does not need that select.
  template <bool kApplyMask>
  static __device__ __forceinline__ void differentiate(OperandA& ds, Scores& probs, Scores& dp, const Rows& rows,
                                                       float keep) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        float d[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float prob = at(probs, r, n, e);
          d[e] = Options::gradient(prob, at(dp, r, n, e), rows.delta[r], keep);
          if (kApplyMask && prob == 0) d[e] = 0;
        }
        ds[n / 2][n % 2 * 2 + r] = pack<E>(d[0], d[1]);
      }
  }

  // Converts P or the factors of dS to 16 bits, in units of kFactorUnit.
  static __device__ __forceinline__ void narrow_factors(OperandA& factors, Scores& s) {
#pragma unroll
    for (int n = 0; n < 4 * kKeyTiles; ++n) s[n / 4].x[n % 4] *= 1 / Options::template kFactorUnit<E>;
    narrow<E>(factors, s);
  }
  // differentiate() of what narrow_factors() has stored, which frees the score registers for dP.
  static __device__ __forceinline__ void differentiate_narrow(OperandA& probs, Scores& dp, const float* stats,
                                                              float keep) {
    constexpr float kUnit = Options::template kFactorUnit<E>;
    const float* delta = stats + delta_at(kPortable, lane_coord().row);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        unsigned& two = probs[n / 2][n % 2 * 2 + r];
        float d[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float prob = widen<E>(static_cast<unsigned short>(e == 0 ? two : two >> 16));
          d[e] = prob == 0 ? 0.0f : Options::gradient(prob, at(dp, r, n, e), delta[8 * r] * kUnit, keep * kUnit, kUnit);
        }
        two = pack<E>(d[0], d[1]);
      }
  }
};

}  // namespace cuflash
