// Mainloop, between Q K^T and softmax: the two rows whose scores a lane holds, the keys that each of them sees, and the
// score options (scale, softcap, ALiBi) applied to its scores.
#pragma once

#include "attn/softmax.h"
#include "kv/geometry.h"

namespace cuflash {

template <Element E, int kOptions>
struct LaneRows {
  using Real = RealOf<E>;
  // Whether scores are scaled before an option modifies them. Otherwise the scale is folded into the exponent, as in
  // ScoreOptions.
  static constexpr bool kModifiesScore = modifies_score(kOptions);

  KeyRange seen[2];
  Real scale, softcap = 0;
  float tanh_argument = 0;
  Real slope[2] = {};
  int position[2] = {};

  // first: the lane's first row in the tile; the second is 8 rows further.
  __device__ __forceinline__ LaneRows(const KvParams& p, const CachedSequence& s, const WorkItem& item, RowRange rows,
                                      int first)
      : scale(static_cast<Real>(p.attention.scale)) {
    const AttentionParams& a = p.attention;
    if ((kOptions & kSoftcap) != 0) softcap = static_cast<Real>(a.softcap), tanh_argument = a.tanh_argument;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = rows.first + first + r * 8;
      seen[r] = {0, 0};
      if (row >= rows.end) continue;
      const int query = query_of_row(row, a.group);
      seen[r] = keys_of_query(a, s, query);
      if ((kOptions & kAlibi) == 0 || !a.slopes.data) continue;
      slope[r] = static_cast<const float*>(
          a.slopes.data)[offset_of(a.slopes, item.b, int64{item.head_k} * a.group + (row - query * a.group))];
      position[r] = static_cast<int>(query + s.shift);
    }
  }

  // Converts stored scores to those of the contract.
  __device__ static Real natural_scale(const AttentionParams& a) {
    return kModifiesScore ? Real(1) : static_cast<Real>(a.scale);
  }
  // Softmax sums exp2(scale_log2() * score).
  __device__ static Real scale_log2(const AttentionParams& a) {
    return static_cast<Real>(kModifiesScore ? kLog2e : a.scale * kLog2e);
  }

  __device__ __forceinline__ Real score(Real dot, int r, int j) const {
    if constexpr (!kModifiesScore) return dot;
    Real x = dot * scale;
    if ((kOptions & kSoftcap) != 0 && softcap > 0)
      x = softcap * softcap_tanh<E>(softcap_argument<E>(dot, scale, softcap, tanh_argument));
    if ((kOptions & kAlibi) != 0) x -= alibi_penalty(slope[r], static_cast<Real>(position[r] - j));
    return x;
  }

  // Applies options, then the mask, which is a selection and hides NaN too. first: the key of the lane's first column.
  template <int kTiles>
  __device__ __forceinline__ void apply(Accumulator<Real> (&x)[1][kTiles], int first, bool every_key_is_seen) const {
    if (!kModifiesScore && every_key_is_seen) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          Real& s = x[0][n].x[r * 2 + e];
          const int j = first + n * 8 + e;
          s = score(s, r, j);
          s = every_key_is_seen || (j >= seen[r].begin && j < seen[r].end) ? s : minus_infinity<Real>();
        }
  }
};

}  // namespace cuflash
