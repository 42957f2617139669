#include "cpu/backward_tile.h"

#include <limits>

#include "cpu/exp.h"

namespace cuflash::cpu {

template <class T>
BackwardTile<T>::BackwardTile(Arena& arena, const Problem& p, TileShape shape)
    : q(arena, shape.q, p.dim_qk, Operand<T>::kRows | Operand<T>::kColumns),
      k(arena, shape.k, p.dim_qk, Operand<T>::kRows | Operand<T>::kColumns),
      v(arena, shape.k, p.dim_v, Operand<T>::kColumns),
      dout(arena, shape.q, p.dim_v, Operand<T>::kRows | Operand<T>::kColumns),
      tile(arena, p, shape),
      ds(arena.take<T>(shape.q * shape.k)),
      flipped(arena.take<T>(shape.q * shape.k)),
      lse(arena.take<T>(shape.q)),
      delta(arena.take<T>(shape.q)) {}

template <class T>
void BackwardTile<T>::load_queries(const BackwardProblem& p, const Head& head, Range queries, const Rows& delta_rows) {
  const int64_t first = head.seq.q_begin;
  q.load(p.q, head.b, head.h, first, queries, p.dim_qk, static_cast<T>(p.scale), tile.staging);
  dout.load(p.dout, head.b, head.h, first, queries, p.dim_v, 1, tile.staging);
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  for (int64_t n = 0; n < round_up(queries.size(), kTileUnit); ++n) {
    const int64_t row = first + queries.begin + n;
    lse[n] = kInfinity, delta[n] = 0;
    if (n >= queries.size()) continue;
    load_row(p.lse.data, p.lse.dtype, p.lse.at(head.b, head.h, row), 1, lse + n);
    delta[n] = static_cast<const T*>(delta_rows.data)[delta_rows.at(head.b, head.h, row)];
    if (lse[n] == -kInfinity) lse[n] = kInfinity;
  }
}

template <class T>
void BackwardTile<T>::load_keys(const BackwardProblem& p, const Head& head, Range keys) {
  k.load(p.k, head.b, head.hk, head.seq.k_begin, keys, p.dim_qk, 1, tile.staging);
  v.load(p.v, head.b, head.hk, head.seq.k_begin, keys, p.dim_v, 1, tile.staging);
}

template <class T>
void BackwardTile<T>::differentiate(const BackwardProblem& p, const Head& head, Range queries, Range keys, At at) {
  using Vec = typename Simd<T>::Vec;
  tile.compute_scores(p, head, queries, keys, q, k);
  gemm_tn(tile.padded_k, tile.padded_q, p.dim_v, v.columns, v.column_stride, dout.columns, dout.column_stride, ds,
          tile.shape.q, Into::overwrite);  // dP
  const T* cap_slope = at == At::product ? tile.cap_slope : nullptr;
  const auto load = [](const T* from) { return *reinterpret_cast<const Vec*>(from); };
  for (int64_t row = 0; row < tile.padded_k; ++row) {
    for (int64_t lane = 0; lane < tile.padded_q; lane += Simd<T>::kLanes) {
      const int64_t n = row * tile.shape.q + lane;
      const Vec s = load(tile.s + n);
      Vec probability = exp_vector(s - load(lse + lane));
      Vec gradient = load(ds + n);
      if (tile.keep) gradient *= load(tile.keep + n);
      gradient = probability * (gradient - load(delta + lane));
      if (cap_slope) gradient *= load(cap_slope + n);
      if (tile.keep) probability *= load(tile.keep + n);
      // A hidden pair has no weight and no gradient, whatever NaN its key or its query brought here.
      const auto hidden = s == -std::numeric_limits<T>::infinity();
      *reinterpret_cast<Vec*>(ds + n) = hidden ? Vec{} : gradient;
      *reinterpret_cast<Vec*>(tile.s + n) = hidden ? Vec{} : probability;
    }
  }
}

template <class T>
const T* BackwardTile<T>::flip(const T* w) {
  for (int64_t row = 0; row < tile.padded_k; ++row)
    for (int64_t column = 0; column < tile.padded_q; ++column)
      flipped[column * tile.shape.k + row] = w[row * tile.shape.q + column];
  return flipped;
}

template struct BackwardTile<float>;
template struct BackwardTile<double>;

}  // namespace cuflash::cpu
