// Elementwise steps of the backward consumers on their accumulators: masks, P from S and dS from dP. Keys are rows,
// queries are columns.
#pragma once

#include "attn/tile_scores.h"
#include "portable/backward/exponentiate.h"
#include "portable/backward/visited_queries.h"
#include "ptx/warpgroup.h"
#include "sm90/backward/options.h"
#include "sm90/lane_coord.h"
#include "sm90/pair_bits.h"
#include "sm90/step_info.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct KeyScores {
  static constexpr Element E = C.element;
  static constexpr BackwardConfig kPortable = portable_view(C);
  static constexpr int kQueryTiles = C.tile_q / 8, kSteps = C.tile_q / 16;
  static constexpr int kDelta = delta_at(kPortable, 0);
  using Scores = Accumulator<float>[1][kQueryTiles];
  using OperandA = unsigned[kSteps][4];  // A operand of the wgmma that reduces over queries
  using Options = BackwardOptions<E, C.options>;

  // Coordinates of the lane within the key tile; keys are rows.
  static __device__ __forceinline__ LaneCoord lane_coord() {
    return lane_coord_of(split_dk_dv(C) ? new_thread_id() % kWarpgroupThreads : new_thread_id());
  }

  // Replaces hidden scores by `hidden`, whatever their value.
  static __device__ __forceinline__ void hide(Scores& s, const AttentionParams& a, const TaskCoord& coord, int tile,
                                              float hidden = Options::hidden_value()) {
    const LaneCoord lane = lane_coord();
    const VisibleQueries<kPortable> visible(a, coord.sequence, tile * C.tile_q, coord.k_first, lane.row);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int query = lane.column + 8 * n + x % 2;
        const bool seen = query >= visible.begin[0][x / 2] && query < visible.end[0][x / 2];
        s[0][n].x[x] = seen ? s[0][n].x[x] : hidden;
      }
  }

  // The visible pairs as a bit mask, for a later select.
  static __device__ __forceinline__ unsigned visible_pairs(const AttentionParams& a, const TaskCoord& coord, int tile) {
    const LaneCoord lane = lane_coord();
    const VisibleQueries<kPortable> visible(a, coord.sequence, tile * C.tile_q, coord.k_first, lane.row);
    const auto bits = [&](int r) {
      return columns_between(visible.begin[0][r] - lane.column, visible.end[0][r] - lane.column);
    };
    return bits(0) | bits(1) << 16;
  }
  static __device__ __forceinline__ unsigned kept_pairs_of(const AttentionParams& a, const TaskCoord& coord,
                                                           const StepInfo& info) {
    if constexpr (!Options::kHasDropout) return 0;
    const LaneCoord lane = lane_coord();
    return kept_pairs_of_keys(info.stream, a.dropout_rule, coord.k_first + lane.row, info.q_first + lane.column);
  }

  // Element x of tile n, widened.
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

  // exponentiate_small for a positive factor: a score of -inf becomes 0 without a select.
  static __device__ __forceinline__ void exponentiate(Scores& s, const RowValues& lse, float factor) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) s[0][n].x[x] = exp2_of(s[0][n].x[x] * factor - lse[n].x[x % 2]);
  }
  // exponentiate() and the conversion to 16 bits in one loop, which frees the score registers early.
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
  // A lane's part of a bias tile, for ldmatrix.
  struct LaneBias {
    unsigned address;
    int stride;  // bytes between 16 queries; 0: all queries have the same bias
  };
  // Computes P in kernels with options. exponent(score, bias, n, x) returns the exponent of a pair and the derivative
  // of softcap. P of dropped pairs is 0 in probs. on_factors(step, factors) receives the factors of dS as kStored
  // elements, in units of kFactorUnit.
  template <Element kStored, bool kSelects, class Exponent, class OnFactors>
  static __device__ __forceinline__ void exponentiate_pairs(OperandA& probs, const Scores& s, LaneBias bias_rows,
                                                            unsigned seen, unsigned kept, Exponent exponent,
                                                            OnFactors on_factors) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned factors[4], biases[4] = {};
      if constexpr (Options::kHasBias) ldmatrix_x4_trans(bias_rows.address + step * bias_rows.stride, biases);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * step + half;
        float prob[4], factor[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const unsigned bit = pair_bit(x / 2, n, x % 2);
          const unsigned two = biases[2 * half + x / 2];
          const float bias = widen<E>(static_cast<unsigned short>(x % 2 == 0 ? two : two >> 16));
          const typename Options::Exponent v = exponent(s[0][n].x[x], bias, n, x);
          prob[x] = exp2_of(v.value);
          factor[x] = prob[x] * v.slope * (1 / Options::template kFactorUnit<kStored>);
          if constexpr (kSelects) {
            prob[x] = (seen & bit) != 0 ? prob[x] : 0.0f;
            factor[x] = (seen & bit) != 0 ? factor[x] : 0.0f;
          }
          if constexpr (Options::kHasDropout) {
            factor[x] = (kept & bit) != 0 ? factor[x] : -factor[x];
            prob[x] = (kept & bit) != 0 ? prob[x] : 0.0f;
          }
        }
        probs[step][2 * half] = pack<E>(prob[0], prob[1]), probs[step][2 * half + 1] = pack<E>(prob[2], prob[3]);
        factors[2 * half] = pack<kStored>(factor[0], factor[1]);
        factors[2 * half + 1] = pack<kStored>(factor[2], factor[3]);
      }
      on_factors(step, factors);
      __syncwarp();
    }
  }
  // With kPolynomialSoftcap: whether all dot products of a warp, hidden ones included, are in the range of the
  // polynomial. If so, the polynomial serves the whole tile, and pairs are hidden in their dot products
  // (CapDerivative::hidden). Otherwise polynomial or exponential is chosen per pair, which gives the same bits, and
  // pairs are hidden in P.
  static __device__ __forceinline__ bool in_cap_range(const Scores& s, const CapDerivative& cap) {
    return !__any_sync(0xffffffffu, largest_magnitude(s) >= cap.exponent.limit);
  }
  template <Element kStored, bool kInRange>
  static __device__ __forceinline__ void exponentiate_capped(OperandA& probs, OperandA& factors, const Scores& s,
                                                             const RowValues& lse, const CapDerivative& cap,
                                                             unsigned seen) {
    exponentiate_pairs<kStored, !kInRange>(
        probs, s, {}, seen, 0,
        [&](float x, float, int n, int e) {
          return Options::template capped_exponent<kInRange>(cap, x, -lse[n].x[e % 2]);
        },
        [&](int step, const unsigned(&four)[4]) {
#pragma unroll
          for (int n = 0; n < 4; ++n) factors[step][n] = four[n];
        });
  }
  // ALiBi where the exponent is linear in the dot product: the penalty of the lane's first key is added to the LSE.
  struct Alibi {
    const StepInfo& info;
    float distance;  // position of the lane's first query minus that of its first key

    __device__ __forceinline__ explicit Alibi(const StepInfo& info) : info(info) {
      const LaneCoord lane = lane_coord();
      distance = info.distance + static_cast<float>(lane.column - lane.row);
    }
    static __device__ __forceinline__ float offset(int n, int x) {
      return static_cast<float>(8 * n + x % 2 - x / 2 * 8);
    }
    __device__ __forceinline__ void add_to(RowValues& lse) const {
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) lse[n].x[e] += info.slope * (distance + offset(n, e));
    }
    // Adds the difference for the lane's second key, which is 8 keys further to the right, to the dot products. Also
    // corrects visible keys after a query, which so far have a bonus instead of a penalty.
    __device__ __forceinline__ void correct(Scores& s) const {
      const float slope = info.dot_slope;
      const bool spans_diagonal = uniform(info.spans_diagonal);
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[0][n].x[2 + e] += 8 * slope;
      if (!spans_diagonal) return;
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[0][n].x[x] += 2 * slope * fminf(distance + offset(n, x), 0.0f);
    }
    __device__ __forceinline__ float penalty(int n, int x) const { return info.slope * fabsf(distance + offset(n, x)); }
  };
  // What the exponents of a tile need in addition to its scores.
  struct RowState {
    RowValues lse;
    unsigned kept;   // pairs that dropout keeps
    unsigned shown;  // pairs that the mask tensor shows

    __device__ __forceinline__ void add_options(const StepInfo& info) {
      if constexpr (!Options::kAffineAlibi) return;
      Alibi(info).add_to(lse);
    }
  };
  // Exponents of a tile in which no LSE is large.
  struct Exponents {
    const Sm90BackwardParams& p;
    const RowState& rows;
    const StepInfo& info;

    // score: the dot product, or its tanh with softcap.
    __device__ __forceinline__ typename Options::Exponent operator()(float score, float bias, int n, int x) const {
      float shift = -rows.lse[n].x[x % 2];
      if constexpr (Options::kHasAlibi && !Options::kAffineAlibi) shift -= Alibi(info).penalty(n, x);
      if constexpr (Options::kHasBias) shift += bias * static_cast<float>(kLog2e);
      return Options::exponent(p, score, shift);
    }
  };
  // Exponents of a tile in which an LSE may be large, from scores that are computed as forward computes them.
  struct GuardedExponents {
    const CapDerivative& cap;
    ScoreOptions<E, C.options, OptionSet::exact> options;
    unsigned lane_lse;  // shared address of the LSE of the lane's first query
    unsigned large[2];  // bit masks of rows with a large LSE, from the lane's first query on: first and last 32 queries
    float distance;     // as in Alibi

    __device__ __forceinline__ GuardedExponents(const Sm90BackwardParams& p, const TaskCoord& coord,
                                                const StepInfo& info, const float* stats, unsigned lane_lse)
        : cap(p.factors.cap), options(p.backward.attention, coord.sequence, coord.b, info.head), lane_lse(lane_lse) {
      const LaneCoord lane = lane_coord();
      const auto* large_rows = reinterpret_cast<const unsigned*>(stats + large_rows_at(kPortable));
      for (int half = 0; half < 2; ++half) large[half] = large_rows[half] >> lane.column;
      distance = Options::kHasAlibi ? info.distance + static_cast<float>(lane.column - lane.row) : 0;
    }
    __device__ __forceinline__ typename Options::Exponent operator()(float dot, float bias, int n, int x) const {
      float lse[2], t = options.argument(dot);
      load_pair_from_shared(lane_lse + 32 * n, lse[0], lse[1]);
      const bool is_large = (large[n / 4] >> (n % 4 * 8 + x % 2) & 1) != 0;
      // Scores are bounded by the cap, so P is 0 or infinity where the LSE is large.
      if constexpr (Options::kPolynomialSoftcap)
        return Options::template capped_exponent<false>(
            cap, dot, is_large ? -lse[x % 2] * static_cast<float>(kLog2e) : -lse[x % 2]);
      if constexpr (Options::kHasSoftcap) t = options.tanh_value(t);
      const float penalty = Options::kHasAlibi ? options.penalty(distance + Alibi::offset(n, x)) : 0;
      const float score = options.score(t, penalty, bias);
      return {guarded_exponent(options, score, lse[x % 2], is_large), Options::kHasSoftcap ? 1 - t * t : 1};
    }
  };
  // Computes dS from dP and converts it to 16 bits. factors_of(step, factors) returns the factors of dS as
  // exponentiate_pairs() stored them.
  template <Element kStored, class FactorsOf>
  static __device__ __forceinline__ void differentiate_pairs(OperandA& ds, const Scores& dp, unsigned lane_delta,
                                                             float keep, bool masked, FactorsOf factors_of) {
    constexpr float kUnit = Options::template kFactorUnit<kStored>;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      unsigned factors[4];
      float delta[2];
      factors_of(step, factors);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int n = 2 * step + m / 2;
        float d[2];
        if (m % 2 == 0) {
          load_pair_from_shared(lane_delta + 32 * n, delta[0], delta[1]);
          delta[0] *= kUnit, delta[1] *= kUnit;
        }
#pragma unroll
        for (int e = 0; e < 2; ++e)
          d[e] = Options::gradient(widen<kStored>(static_cast<unsigned short>(e == 0 ? factors[m] : factors[m] >> 16)),
                                   dp[0][n].x[m % 2 * 2 + e], delta[e], keep * kUnit, kUnit);
        ds[step][m] = pack<E>(d[0], d[1]);
        if (masked)
          ds[step][m] &= kStored == Element::bf16 ? not_zero_mask_bf16(factors[m]) : not_zero_mask_f16(factors[m]);
      }
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
