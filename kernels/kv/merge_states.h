// A separate kernel that merges two partial results (O, LSE) of the same rows over different keys. C.lanes lanes of a
// warp share a row and process eight elements each at a time. An output may alias an input: each element is read before
// it is written, by the same lane, and all lanes of a row read its LSE before one of them writes it.
#pragma once

#include "attn/sequence.h"
#include "kv_params.h"
#include "tile/eight.h"

namespace cuflash {

// exp(lse - lse_max); equal infinities count as equal, and a part without keys has weight 0.
template <class Real>
__device__ __forceinline__ Real weight_of(Real lse, Real lse_max) {
  if (lse == minus_infinity<Real>()) return 0;
  return lse == lse_max ? Real(1) : exp2_of((lse - lse_max) * static_cast<Real>(kLog2e));
}

template <MergeConfig C>
__device__ __forceinline__ void merge_states(const MergeParams& p) {
  constexpr Element E = C.element;
  using Real = RealOf<E>;
  constexpr int kRows = num_threads(C) / C.lanes;
  static_assert(32 % C.lanes == 0);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % C.lanes;
  const int64 n = cta_number() * kRows + thread / C.lanes;
  const bool exists = n < p.batch * p.heads * p.len;
  const int64 head = exists ? quotient(n, p.len) : 0, b = quotient(head, p.heads);
  const int64 h = head - b * p.heads, row = exists ? n - head * p.len : 0;
  Real lse_a = minus_infinity<Real>(), lse_b = lse_a;
  if (exists) {
    lse_a = static_cast<const Real*>(p.lse_a.data)[offset_of(p.lse_a, b, h, row)];
    lse_b = static_cast<const Real*>(p.lse_b.data)[offset_of(p.lse_b, b, h, row)];
  }
  __syncwarp();  // all lanes have read the LSE before one of them writes it
  if (!exists) return;
  const Real lse_max = larger(lse_a, lse_b), part_a = weight_of(lse_a, lse_max), part_b = weight_of(lse_b, lse_max);
  const bool has_a = lse_a != minus_infinity<Real>(), has_b = lse_b != minus_infinity<Real>();
  const Real share = has_a || has_b ? 1 / (part_a + part_b) : Real(0);
  for (int d = lane * 8; d < p.dim; d += C.lanes * 8) {
    const int count = min(8, p.dim - d);
    // A part without keys is not read: 0 * NaN would be NaN.
    Real of_a[8] = {}, of_b[8] = {};
    if (has_a) load_eight<E>(p.o_a.data, p.o_a.element, offset_of(p.o_a, b, h, row) + d, count, of_a);
    if (has_b) load_eight<E>(p.o_b.data, p.o_b.element, offset_of(p.o_b, b, h, row) + d, count, of_b);
#pragma unroll
    for (int c = 0; c < 8; ++c) of_a[c] = (of_a[c] * part_a + of_b[c] * part_b) * share;
    store<E>(p.o.data, p.o.element, offset_of(p.o, b, h, row) + d, count, of_a);
  }
  if (lane != 0 || !p.lse.data) return;
  static_cast<Real*>(p.lse.data)[offset_of(p.lse, b, h, row)] =
      has_a || has_b ? lse_max + log2_of(part_a + part_b) * static_cast<Real>(0.6931471805599453)
                     : minus_infinity<Real>();
}

}  // namespace cuflash
