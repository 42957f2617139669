#include "cpu/backward_scratch.h"

#include <algorithm>
#include <limits>

namespace cuflash::cpu {

template <class T, class E>
BackwardScratch<T, E>::BackwardScratch(Arena& arena, const BackwardProblem& p, const Kernels<T, E>& kernels,
                                       TileShape shape, int64_t dbias_rows)
    : panel(arena, p, kernels, shape.k),
      mask(arena, p, kernels.lanes, shape),
      shape(shape),
      key_rows(round_up(shape.k, kernels.rows)) {
  const int64_t rows = kernels.rows, lanes = kernels.lanes;
  if (p.softcap > 0) panel.cap_slope = arena.take<T>(key_rows * lanes);
  dim_qk = round_up(p.dim_qk, kernels.step), dim_v = round_up(p.dim_v, kernels.step);
  k_by_dim = arena.take<E>(key_rows * dim_qk);
  k = RowOperand<E>(arena, shape.k, p.dim_qk, rows);
  v_by_dim = arena.take<E>(key_rows * dim_v);
  q_by_dim = arena.take<E>(shape.q * dim_qk);
  q = RowOperand<E>(arena, shape.q, p.dim_qk, lanes);
  dout_by_dim = arena.take<E>(shape.q * dim_v);
  dout = RowOperand<E>(arena, shape.q, p.dim_v, lanes);
  lse = arena.take<T>(shape.q);
  delta = arena.take<T>(shape.q);
  dp = arena.take<T>(key_rows * lanes);
  p_left = arena.take<E>(key_rows * shape.q);
  ds_left = arena.take<E>(key_rows * shape.q);
  dk = arena.take<T>(key_rows * round_up(p.dim_qk, lanes));
  dv = arena.take<T>(key_rows * round_up(p.dim_v, lanes));
  ones = p.dbias ? arena.take<T>(lanes) : nullptr;
  dbias = p.dbias ? arena.take<T>(Checked(round_up(dbias_rows, lanes)) * shape.k) : nullptr;
}

template <class T, class E>
void BackwardScratch<T, E>::load_keys(const BackwardProblem& p, const Head& head, Range keys, Loads loads) {
  const Kernels<T, E>& kernels = panel.kernels;
  const auto of_k = source_of(p.k, head.b, head.hk, head.seq.k_begin, keys, p.dim_qk);
  if (loads == Loads::all) k.load(kernels, of_k, Side::left, k_by_dim, panel.staging);
  else kernels.pack(of_k, Side::left, k_by_dim, nullptr, 0, nullptr, panel.staging);
  kernels.pack(source_of(p.v, head.b, head.hk, head.seq.k_begin, keys, p.dim_v), Side::left, v_by_dim, nullptr, 0,
               nullptr, panel.staging);
}

template <class T, class E>
void BackwardScratch<T, E>::load_queries(const BackwardProblem& p, const Head& head, Range queries,
                                         const Rows& delta_rows, Loads loads) {
  const Kernels<T, E>& kernels = panel.kernels;
  const int64_t first = head.seq.q_begin, lanes = kernels.lanes;
  const auto load = [&](RowOperand<E>& by_row, const auto& source, E* by_dim) {
    if (loads == Loads::all) by_row.load(kernels, source, Side::right, by_dim, panel.staging);
    else kernels.pack(source, Side::right, by_dim, nullptr, 0, nullptr, panel.staging);
  };
  load(q, source_of(p.q, head.b, head.h, first, queries, p.dim_qk), q_by_dim);
  load(dout, source_of(p.dout, head.b, head.h, first, queries, p.dim_v), dout_by_dim);
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  for (int64_t n = 0; n < round_up(queries.size(), lanes); ++n) {
    const int64_t row = first + queries.begin + n;
    lse[n] = kInfinity, delta[n] = 0;
    if (n >= queries.size()) continue;
    load_row(p.lse.data, p.lse.dtype, p.lse.at(head.b, head.h, row), 1, lse + n);
    delta[n] = static_cast<const T*>(delta_rows.data)[delta_rows.at(head.b, head.h, row)];
    if (lse[n] == -kInfinity) lse[n] = kInfinity;
  }
}

template <class T, class E>
void BackwardScratch<T, E>::differentiate(const BackwardProblem& p, const Head& head, Range tile, Range queries,
                                          Range keys, GradientAt at, const Ahead& ahead) {
  const Kernels<T, E>& kernels = panel.kernels;
  const int64_t first = queries.begin - tile.begin;
  panel.compute_scores(p, head, queries, keys, mask.panel(first), q_by_dim + first * dim_qk, k_by_dim, ahead);
  const int64_t seen = panel.keys.size();
  kernels.multiply(seen, p.dim_v, v_by_dim + panel.first_key * dim_v, dim_v * kernels.rows, dout_by_dim + first * dim_v,
                   dp, Into::overwrite, {});
  kernels.differentiate(seen, !panel.visible.complete || panel.visible.bias_hides, panel.s, panel.scale, dp,
                        lse + first, delta + first, panel.keep,
                        at == GradientAt::dot_product ? panel.cap_slope : nullptr);
}

// Converts w of the panel to a left operand that is summed over queries, with zeros for keys of the tile that the panel
// does not see.
template <class T, class E>
void BackwardScratch<T, E>::to_left(const T* w, E* left, int64_t first, int64_t tile_keys) const {
  const int64_t rows = panel.kernels.rows, size = panel.kernels.lanes * rows;
  const auto clear = [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; k += rows) std::fill_n(left + k * shape.q + first * rows, size, E{});
  };
  clear(0, panel.first_key);
  panel.kernels.to_left(panel.keys.size(), w, left + panel.first_key * shape.q, shape.q, first);
  clear(round_up(panel.first_key + panel.keys.size(), rows), tile_keys);
}

template <class T, class E>
void BackwardScratch<T, E>::add_panel_to_keys(const BackwardProblem& p, Range tile, int64_t keys) {
  const int64_t first = panel.queries.begin - tile.begin;
  if (p.dv) {
    to_left(panel.s, p_left, first, keys);
    add_nonfinite_queries(panel.s, dout, first, dv);
  }
  if (p.dk) {
    to_left(dp, ds_left, first, keys);
    add_nonfinite_queries(dp, q, first, dk);
  }
}

template <class T, class E>
void BackwardScratch<T, E>::add_nonfinite_queries(const T* w, const RowOperand<E>& x, int64_t first, T* c) {
  const int64_t lanes = panel.kernels.lanes;
  for (int64_t n = 0; n < x.nonfinite_count; ++n) {
    const int64_t q = x.nonfinite[n] - first;
    if (q < 0 || q >= panel.queries.size()) continue;
    x.read(x.nonfinite[n], panel.staging);
    for (int64_t k = 0; k < panel.keys.size(); ++k)
      if (panel.visible.sees(q, k))
        for (int64_t d = 0; d < x.source.dim; ++d)
          c[(d / lanes * key_rows + panel.first_key + k) * lanes + d % lanes] += w[k * lanes + q] * panel.staging[d];
  }
}

template <class T, class E>
void BackwardScratch<T, E>::flush_queries(const BackwardProblem& p, Range queries, int64_t keys) {
  const Kernels<T, E>& kernels = panel.kernels;
  const int64_t lanes = kernels.lanes;
  const auto add = [&](const E* w_left, const RowOperand<E>& x, T* c) {
    for (int64_t d = 0; d < x.source.dim; d += lanes)
      kernels.multiply(keys, queries.size(), w_left + queries.begin * kernels.rows, shape.q * kernels.rows,
                       x.panels + d * shape.q + queries.begin * lanes, c + d * key_rows, Into::add, {});
  };
  if (p.dv) add(p_left, dout, dv);
  if (p.dk) add(ds_left, q, dk);
}

template struct BackwardScratch<float, float>;
template struct BackwardScratch<double, double>;
template struct BackwardScratch<float, Operand16>;

}  // namespace cuflash::cpu
