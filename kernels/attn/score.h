// Score options of one (batch, head): softcap, ALiBi, bias, mask tensor and dropout. kOptions are the options that the
// kernel is compiled for. OptionSet says whether the call has exactly these options, or whether the params say at run
// time which of them it uses.
//
// A score is a function of its dot product and of (i, j) alone, whatever the tile: backward computes the same bits, and
// compares them with LSE however large they are.
//
//   x = argument(dot)      softcap: the argument of tanh, otherwise the dot product
//   t = tanh_value(x)      softcap only; 1 - t^2 is the derivative
//   score(t or x, ...)     the score in units of natural_scale()
#pragma once

#include "attn/sequence.h"
#include "attn/softcap.h"
#include "philox.h"

namespace cuflash {

constexpr double kLn2 = 0.6931471805599453;

// The number that ALiBi subtracts from a score. distance: the query's position minus the key's.
template <class Real>
__device__ __forceinline__ Real alibi_penalty(Real slope, Real distance) {
  return rounded_product(slope, fabs(distance));
}

enum class OptionSet {
  exact,     // the options of the call
  superset,  // the call may use fewer
};

template <Element E, int kOptions, OptionSet kSet = OptionSet::superset>
struct ScoreOptions {
  using Real = RealOf<E>;
  static constexpr Element kElement = E;
  static constexpr bool kHasSoftcap = (kOptions & kSoftcap) != 0;
  static constexpr bool kHasAlibi = (kOptions & kAlibi) != 0;
  static constexpr bool kHasBias = (kOptions & kBias) != 0;
  static constexpr bool kHasMask = (kOptions & kMaskTensor) != 0;
  static constexpr bool kHasDropout = (kOptions & kDropout) != 0;
  static constexpr bool kModifiesScore = modifies_score(kOptions);
  static constexpr bool kExact = kSet == OptionSet::exact;
  // Units of a score. The tensor cores compute plain dot products, and softcap yields tanh. If nothing is added, or
  // only ALiBi, whose slope is then divided by the factor, the scale or the cap is folded into the exponent of the
  // softmax.
  static constexpr bool kIsDot = !kModifiesScore;
  static constexpr bool kIsTanh = kHasSoftcap && !kHasAlibi && !kHasBias;
  static constexpr bool kFoldsAlibi = kExact && kHasAlibi && !kHasBias && (kOptions & kScaleFirst) == 0;
  static constexpr bool kFoldsFactor = kIsDot || kIsTanh || kFoldsAlibi;

  const AttentionParams& a;
  Sequence sequence;
  int64 bias_offset = 0, mask_offset = 0;
  Real factor;     // multiplies the dot product, or tanh
  Real slope = 0;  // ALiBi slope in units of the score
  DropoutStream stream{};

  __device__ ScoreOptions(const AttentionParams& a, const Sequence& s, int b, int h)
      : a(a), sequence(s), factor(static_cast<Real>(has_softcap() ? a.softcap : a.scale)) {
    if (has_alibi()) slope = static_cast<const float*>(a.slopes.data)[offset_of(a.slopes, b, h)];
    if (kFoldsAlibi) slope /= factor;
    if (kHasBias) bias_offset = offset_of(a.bias, b, h, 0);
    if (kHasMask) mask_offset = offset_of(a.mask, b, h, 0);
    if (kHasDropout)
      stream = dropout_stream(a.dropout_seed, a.dropout_offset, static_cast<unsigned>(b), static_cast<unsigned>(h));
  }

  __device__ bool has_softcap() const { return kHasSoftcap && (kExact || a.softcap > 0); }
  __device__ bool has_alibi() const { return kHasAlibi && (kExact || a.slopes.data); }
  __device__ bool has_bias() const { return kHasBias && (kExact || a.bias.data); }
  __device__ bool has_mask() const { return kHasMask && (kExact || a.mask.data); }
  __device__ bool has_dropout() const { return kHasDropout && (kExact || a.dropout_rule.drops_any()); }

  // Converts a score to the natural units of the LSE.
  __device__ Real natural_scale() const { return kFoldsFactor ? factor : Real(1); }
  // Softmax sums exp2(scale_log2() * score).
  __device__ Real scale_log2() const {
    return static_cast<Real>(kFoldsFactor ? (has_softcap() ? a.softcap : a.scale) * kLog2e : kLog2e);
  }

  __device__ __forceinline__ Real argument(Real dot) const {
    if (!has_softcap()) return dot;
    if constexpr (kExact && kFastTanh<E>) return dot * a.tanh_argument;
    else return softcap_argument<E>(dot, static_cast<Real>(a.scale), factor, a.tanh_argument);
  }
  // tanh of x, which is already the argument.
  __device__ __forceinline__ Real tanh_value(Real x) const { return softcap_tanh<E>(x); }
  __device__ __forceinline__ Real penalty(Real distance) const { return alibi_penalty(slope, distance); }
  // x: tanh, or the dot product. penalty and bias are 0 if the call does not have them.
  __device__ __forceinline__ Real score(Real x, Real penalty, Real bias) const {
    if constexpr (kIsDot || kIsTanh) return x;
    else if constexpr (kFoldsAlibi) return x - penalty;
    else if constexpr (!kHasAlibi && !kHasBias) return x * factor;
    else if constexpr (!kHasAlibi) return multiply_add(x, factor, bias);
    else if constexpr (!kHasBias) return multiply_add(x, factor, -penalty);
    else return multiply_add(x, factor, -penalty) + bias;
  }

  __device__ Real bias(int i, int j) const {
    return load_element<E>(a.bias.data, a.bias.element, bias_offset + i * a.bias.row_stride + j);
  }
  // The complete score of one pair. exists: i and j are within their lengths. With softcap, tanh_value receives the
  // tanh.
  __device__ Real score_of(Real dot, int i, int j, bool exists, Real* tanh = nullptr) const {
    Real x = argument(dot);
    if (has_softcap()) {
      x = tanh_value(x);
      if (tanh) *tanh = x;
    }
    return score(x, has_alibi() ? penalty(static_cast<Real>(i + sequence.shift - j)) : Real(0),
                 has_bias() && exists ? bias(i, j) : Real(0));
  }
  __device__ bool unmasked(int i, int j, bool exists) const {
    if (!has_mask()) return true;
    return exists && static_cast<const unsigned char*>(a.mask.data)[mask_offset + i * a.mask.row_stride + j] != 0;
  }
  // The factor of kept probabilities; 1 without dropout.
  __device__ Real keep_scale() const { return kHasDropout ? static_cast<Real>(a.keep_scale) : Real(1); }
  // The dropout group `rows` and `columns` groups after the group of the lane's first pair (i, j).
  __device__ DropoutGroup dropout_group(int i, int j, int rows, int columns) const {
    return dropout_group_at(stream, dropout_group_row(static_cast<unsigned>(i)) + static_cast<unsigned>(rows),
                            dropout_group_column(static_cast<unsigned>(j)) + static_cast<unsigned>(columns));
  }
  // DropoutRule::keeps for one window of a group, comparing bf16 numbers instead of ranks.
  __device__ __forceinline__ bool keeps(const DropoutGroup& group, unsigned row, unsigned column) const {
    const unsigned window = __byte_perm(group.low[row], group.word[row], column | (4 + column) << 4) << 16;
    const float bound = __uint_as_float(a.dropout_rule.bf16x2 << 16);
    return !(__uint_as_float(window) < bound) != (a.dropout_rule.inverted != 0);
  }
};

}  // namespace cuflash
