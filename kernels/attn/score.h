// Score options of one (batch, head): softcap, ALiBi, bias, mask tensor and dropout. kOptions are the options the
// kernel is compiled for; the params say at run time which of them the call uses.
#pragma once

#include "attn/sequence.h"
#include "philox.h"
#include "tile/element.h"

namespace cuflash {

constexpr double kLn2 = 0.6931471805599453;

// Softcap of a scaled score. Backward passes tanh_value to get the tanh for the derivative.
template <class Real>
__device__ __forceinline__ Real softcapped(Real s, Real softcap, Real* tanh_value = nullptr) {
  const Real t = tanh_of(s / softcap);
  if (tanh_value) *tanh_value = t;
  return softcap * t;
}
// The term ALiBi subtracts from a score; distance is the query's position minus the key's.
template <class Real, class Int>
__device__ __forceinline__ Real alibi_penalty(Real slope, Int distance) {
  return slope * static_cast<Real>(distance < 0 ? -distance : distance);
}

template <Element E, int kOptions>
struct ScoreOptions {
  using Real = RealOf<E>;
  // The tensor cores compute plain dot products. If an option modifies the score, the scale is applied first; otherwise
  // it is folded into the softmax exponent.
  static constexpr bool kModifiesScore = (kOptions & (kSoftcap | kAlibi | kBias | kScaleFirst)) != 0;
  static constexpr bool kHasMask = (kOptions & kMaskTensor) != 0;
  static constexpr bool kHasDropout = (kOptions & kDropout) != 0;

  const AttentionParams& a;
  Sequence sequence;
  int64 bias_offset = 0, mask_offset = 0;
  Real scale, softcap = 0, slope = 0;
  DropoutStream stream{};

  __device__ ScoreOptions(const AttentionParams& a, const Sequence& s, int b, int h)
      : a(a), sequence(s), scale(static_cast<Real>(a.scale)) {
    if ((kOptions & kSoftcap) != 0) softcap = static_cast<Real>(a.softcap);
    if ((kOptions & kAlibi) != 0 && a.slopes.data)
      slope = static_cast<const float*>(a.slopes.data)[offset_of(a.slopes, b, h)];
    if ((kOptions & kBias) != 0) bias_offset = offset_of(a.bias, b, h, 0);
    if (kHasMask) mask_offset = offset_of(a.mask, b, h, 0);
    if (kHasDropout)
      stream = dropout_stream(a.dropout_seed, a.dropout_offset, static_cast<unsigned>(b), static_cast<unsigned>(h));
  }

  // Converts a score to the natural units of the LSE.
  __device__ Real natural_scale() const { return kModifiesScore ? Real(1) : scale; }
  // Softmax sums exp2(scale_log2() * score).
  __device__ Real scale_log2() const { return static_cast<Real>(kModifiesScore ? kLog2e : a.scale * kLog2e); }

  // exists: i and j are within their lengths. With softcap, tanh_value receives the tanh.
  __device__ Real score(Real dot, int i, int j, bool exists, Real* tanh_value = nullptr) const {
    if constexpr (!kModifiesScore) return dot;
    Real s = dot * scale;
    if ((kOptions & kSoftcap) != 0 && softcap > 0) s = softcapped(s, softcap, tanh_value);
    if ((kOptions & kAlibi) != 0 && a.slopes.data) s -= alibi_penalty(slope, i + sequence.shift - j);
    if ((kOptions & kBias) != 0 && a.bias.data && exists)
      s += load_element<E>(a.bias.data, a.bias.element, bias_offset + i * a.bias.row_stride + j);
    return s;
  }
  __device__ bool unmasked(int i, int j, bool exists) const {
    if (!kHasMask || !a.mask.data) return true;
    return exists && static_cast<const unsigned char*>(a.mask.data)[mask_offset + i * a.mask.row_stride + j] != 0;
  }
  // A probability may be too small to drop anything and still scale what is kept.
  __device__ bool has_dropout() const { return kHasDropout && a.dropout_threshold != 0; }
  // What is kept is multiplied by this; 1 without dropout.
  __device__ Real keep_scale() const { return kHasDropout ? static_cast<Real>(a.keep_scale) : Real(1); }
  // A lane's group that is group_rows and group_columns (of dropout_coordinate) after the one of its first pair (i, j).
  __device__ DropoutGroup dropout_group(int i, int j, int group_rows, int group_columns) const {
    return dropout_group_at(stream, dropout_coordinate(static_cast<unsigned>(i)) + static_cast<unsigned>(group_rows),
                            dropout_coordinate(static_cast<unsigned>(j)) + static_cast<unsigned>(group_columns));
  }
};

}  // namespace cuflash
