// Score options of the backward consumers. In units of log2 and without a bound on LSE a pair has
//
//   exponent = value(q k) - slope |distance| + bias - LSE
//              value: scale_log2 q k, or softcap_log2 tanh(scale q k / softcap)
//   P        = exp2(exponent), 0 if the pair is hidden
//   factor   = P (1 - tanh^2), negative if dropout drops the pair; without softcap and dropout it is P
//   dS       = |factor| (keep dP - delta), where dP is 0 if the pair is dropped
#pragma once

#include "attn/softcap.h"
#include "backward_params.h"
#include "tile/operand.h"

namespace cuflash {

template <Element E, int kOptions>
struct BackwardOptions {
  static constexpr bool kHasSoftcap = (kOptions & kSoftcap) != 0, kHasAlibi = (kOptions & kAlibi) != 0,
                        kHasBias = (kOptions & kBias) != 0, kHasMask = (kOptions & kMaskTensor) != 0,
                        kHasDropout = (kOptions & kDropout) != 0;
  static constexpr bool kModifiesScore = modifies_score(kOptions);
  // Whether hidden pairs are zeroed in P. With the other options, hidden_value() replaces their dot product, or its
  // tanh, which makes P 0.
  static constexpr bool kMasksP = (kOptions & (kBias | kMaskTensor | kScaleFirst)) != 0;
  // With softcap the value is finite and its square is, too, so that the factor of dS is 0 as well. The family rejects
  // softcaps for which the value would be too large.
  static __device__ __forceinline__ float hidden_value() { return kHasSoftcap ? -1e18f : minus_infinity<float>(); }
  // Whether the factor of dS differs from the P that dV is computed from.
  static constexpr bool kHasFactor = kHasSoftcap || kHasDropout;
  // The unit of factors that are stored as kStored elements. Where most scores are near the cap, 1 - tanh^2 is as small
  // as 1e-6 throughout, below the normal numbers of f16: in units of 2^-15 it keeps its digits.
  template <Element kStored>
  static constexpr float kFactorUnit = kHasSoftcap&& kStored == Element::f16 ? 0x1p-15f : 1.0f;
  // Whether a pair of any tile may have a P of 0 and a dP that is not finite.
  static constexpr bool kMayMaskAnyPair = (kOptions & (kBias | kMaskTensor)) != 0;

  // Whether ALiBi is added to the LSE. Left of the diagonal it is affine in the query. Tiles with keys on both sides of
  // a query also need a correction of the dot product, which is possible only if the exponent is linear in it.
  static constexpr bool kAffineAlibi = kHasAlibi && (kOptions & (kSoftcap | kScaleFirst)) == 0;

  // Whether exponents and slopes come from dot products by a polynomial (cap_gradient): softcap as the only option, in
  // bf16. The family uses these kernels for caps that have a polynomial, and kernels with kScaleFirst for others.
  static constexpr bool kPolynomialSoftcap = E == Element::bf16 && kOptions == kSoftcap;

  struct Exponent {
    float value, slope;  // slope is the derivative of softcap
  };
  // The exponent with kPolynomialSoftcap. kInRange: the dot product is in the range of the polynomial.
  template <bool kInRange>
  static __device__ __forceinline__ Exponent capped_exponent(const CapDerivative& cap, float x, float shift) {
    const CapGradient g = kInRange ? cap_gradient_in_range(x, cap, shift) : cap_gradient(x, cap, shift);
    return {g.exponent, g.slope};
  }
  // The exponent without kPolynomialSoftcap. x: the dot product, or its tanh with softcap.
  static __device__ __forceinline__ Exponent exponent(const Sm90BackwardParams& p, float x, float shift) {
    if constexpr (!kHasSoftcap) return {x * p.scale_log2 + shift, 1};
    else return {x * p.factors.softcap_log2 + shift, 1 - x * x};
  }
  // Replaces dot products by tanh. A warp whose arguments are all in the range of the polynomial skips the
  // exponentials.
  template <int kTiles>
  static __device__ __forceinline__ void apply_softcap(Accumulator<float> (&s)[kTiles], const AttentionParams& a) {
    if constexpr (kHasSoftcap) {
      unsigned bits = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) s[n].x[x] *= a.tanh_argument, bits |= __float_as_uint(s[n].x[x]);
      const auto replace = [&](auto function) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) s[n].x[x] = function(s[n].x[x]);
      };
      if (!__any_sync(0xffffffffu, (bits & kBeyondTanhRange) != 0)) replace([](float x) { return tanh_in_range(x); });
      else replace([](float x) { return tanh_of_argument(x); });
    }
  }

  // dS from a factor in units of `unit`, by which delta and keep are multiplied.
  static __device__ __forceinline__ float gradient(float factor, float dp, float delta, float keep, float unit = 1) {
    if constexpr (!kHasDropout) return factor * (dp * unit - delta);
    const bool keeps = __float_as_int(factor) >= 0;
    return fabsf(factor) * ((keeps ? dp : 0.0f) * keep - delta);
  }
};

// The exponent of a score in the units of ScoreOptions. For a row with a large LSE, which is stored as it is, the
// difference is taken before the multiplication by log2(e).
template <class Score>
__device__ __forceinline__ float guarded_exponent(const Score& options, float score, float lse, bool large) {
  return large ? (rounded_product(score, options.natural_scale()) - lse) * static_cast<float>(kLog2e)
               : score * options.scale_log2() - lse;
}

}  // namespace cuflash
