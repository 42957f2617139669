#include "cpu/tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "philox.h"

namespace cuflash::cpu {

template <class T>
Operand<T>::Operand(Arena& arena, int64_t tile, int64_t dim, int forms)
    : row_stride(round_up(dim, kTileUnit)), column_stride(tile) {
  if (forms & kRows) rows = arena.take<T>(tile * row_stride);
  if (forms & kColumns) columns = arena.take<T>(dim * tile);
}

template <class T>
void Operand<T>::load(const ConstRows& from, int64_t b, int64_t h, int64_t first, Range range, int64_t dim, T factor,
                      T* staging) {
  const int64_t count = range.size(), padded = round_up(count, kTileUnit);
  int not_finite = 0;
  for (int64_t r = 0; r < padded; ++r) {
    T* row = rows ? rows + r * row_stride : staging;
    if (r < count) {
      load_row(from.data, from.dtype, from.at(b, h, first + range.begin + r), dim, row);
      for (int64_t d = 0; d < dim; ++d) {
        row[d] *= factor;
        not_finite |= !(std::abs(row[d]) <= std::numeric_limits<T>::max());
      }
    } else {
      std::fill_n(row, dim, T{0});
    }
    if (rows) std::fill(row + dim, row + row_stride, T{0});
    if (columns)
      for (int64_t d = 0; d < dim; ++d) columns[d * column_stride + r] = row[d];
  }
  finite = !not_finite;
}

template <class T>
Tile<T>::Tile(Arena& arena, const Problem& p, TileShape shape) : shape(shape) {
  const int64_t area = shape.q * shape.k;
  s = arena.take<T>(area);
  if (p.softcap > 0) cap_slope = arena.take<T>(area);
  if (p.dropout.p > 0) keep = arena.take<T>(area);
  staging = arena.take<T>(std::max({shape.q, shape.k, p.dim_qk, p.dim_v}));
  visible.begin = arena.take<int32_t>(shape.q);
  visible.end = arena.take<int32_t>(shape.q);
}

template <class T>
void Tile<T>::compute_scores(const Problem& p, const Head& head, Range new_queries, Range new_keys, const Operand<T>& q,
                             const Operand<T>& k) {
  queries = new_queries, keys = new_keys;
  padded_q = round_up(queries.size(), kTileUnit), padded_k = round_up(keys.size(), kTileUnit);
  gemm_tn(padded_k, padded_q, p.dim_qk, k.columns, k.column_stride, q.columns, q.column_stride, s, shape.q, Into::overwrite);
  if (cap_slope) apply_softcap(static_cast<T>(p.softcap));
  if (p.slopes) apply_alibi(p, head);
  if (p.bias) apply_bias(p, head);
  find_visible(p, head);
  if (!visible.complete || padded_q != queries.size() || padded_k != keys.size()) hide_invisible();
  if (keep) draw_dropout(p, head);
}

template <class T>
void Tile<T>::apply_softcap(T softcap) {
  for (int64_t k = 0; k < keys.size(); ++k) {
    for (int64_t q = 0; q < queries.size(); ++q) {
      const T bent = std::tanh(s[k * shape.q + q] / softcap);
      s[k * shape.q + q] = softcap * bent;
      cap_slope[k * shape.q + q] = 1 - bent * bent;
    }
  }
}

template <class T>
void Tile<T>::apply_alibi(const Problem& p, const Head& head) {
  const T slope = static_cast<const float*>(p.slopes.data)[p.slopes.at(head.b, head.h)];
  for (int64_t k = 0; k < keys.size(); ++k)
    for (int64_t q = 0; q < queries.size(); ++q)
      s[k * shape.q + q] -= slope * static_cast<T>(std::abs(queries.begin + q + head.seq.shift - (keys.begin + k)));
}

template <class T>
void Tile<T>::apply_bias(const Problem& p, const Head& head) {
  for (int64_t q = 0; q < queries.size(); ++q) {
    load_row(p.bias.data, p.bias.dtype, p.bias.at(head.b, head.h, queries.begin + q) + keys.begin, keys.size(), staging);
    for (int64_t k = 0; k < keys.size(); ++k) s[k * shape.q + q] += staging[k];
  }
}

template <class T>
void Tile<T>::find_visible(const Problem& p, const Head& head) {
  visible.complete = !p.mask && tile_kind(p, head.seq, queries, keys) == TileKind::full;
  visible.mask = nullptr;
  if (p.mask) {
    visible.mask = static_cast<const uint8_t*>(p.mask.data) + p.mask.at(head.b, head.h, queries.begin) + keys.begin;
    visible.mask_stride = p.mask.row_stride;
  }
  for (int64_t q = 0; q < padded_q; ++q) {
    Range range{0, 0};
    if (q < queries.size()) range = keys_of_query(p, head.seq, queries.begin + q);
    visible.begin[q] = static_cast<int32_t>(std::clamp<int64_t>(range.begin - keys.begin, 0, padded_k));
    visible.end[q] = static_cast<int32_t>(std::clamp<int64_t>(range.end - keys.begin, 0, keys.size()));
  }
}

template <class T>
void Tile<T>::hide_invisible() {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  for (int64_t k = 0; k < padded_k; ++k) {
    T* row = s + k * shape.q;
    for (int64_t q = 0; q < padded_q; ++q) {
      const bool inside = (k >= visible.begin[q]) & (k < visible.end[q]);
      row[q] = inside ? row[q] : kHidden;
    }
  }
  if (!visible.mask) return;
  for (int64_t q = 0; q < queries.size(); ++q) {
    const uint8_t* allowed = visible.mask + q * visible.mask_stride;
    for (int64_t k = visible.begin[q]; k < visible.end[q]; ++k)
      if (!allowed[k]) s[k * shape.q + q] = kHidden;
  }
}

// Tiles start at multiples of 16, so whole groups of four decisions fall into one tile and each is drawn once.
template <class T>
void Tile<T>::draw_dropout(const Problem& p, const Head& head) {
  const DropoutStream stream = dropout_stream(p.dropout.seed, p.dropout.offset, static_cast<uint32_t>(head.b),
                                              static_cast<uint32_t>(head.h));
  const unsigned threshold = dropout_threshold(p.dropout.p);
  const T kept = static_cast<T>(1 / (1 - p.dropout.p));
  for (int64_t k0 = 0; k0 < padded_k; k0 += k0 % 16 == 7 ? 9 : 1) {
    for (int64_t q0 = 0; q0 < padded_q; q0 += q0 % 16 == 7 ? 9 : 1) {
      const auto i = static_cast<uint32_t>(queries.begin + q0), j = static_cast<uint32_t>(keys.begin + k0);
      const PhiloxWords words = dropout_group(stream, i, j);
      for (uint32_t di = 0; di <= 8; di += 8)
        for (uint32_t dj = 0; dj <= 8; dj += 8)
          keep[(k0 + dj) * shape.q + q0 + di] = words.word[dropout_word(i + di, j + dj)] >= threshold ? kept : T{0};
    }
  }
}

// c [m][dim] += sum over n of w [n][m] x [n][dim], over the pairs that see each other.
template <class T, class Sees>
static void accumulate_seen(int64_t ms, int64_t ns, const T* w, int64_t w_stride, const Operand<T>& x, int64_t dim, T* c,
                            int64_t c_stride, Sees sees) {
  for (int64_t m = 0; m < ms; ++m)
    for (int64_t n = 0; n < ns; ++n)
      if (sees(m, n))
        for (int64_t d = 0; d < dim; ++d) c[m * c_stride + d] += w[n * w_stride + m] * x.rows[n * x.row_stride + d];
}

template <class T>
void accumulate_over_keys(const Tile<T>& tile, const T* w, const Operand<T>& x, int64_t dim, T* c, int64_t c_stride) {
  if (x.finite || tile.visible.complete)
    return gemm_tn(tile.padded_q, x.row_stride, tile.keys.size(), w, tile.shape.q, x.rows, x.row_stride, c, c_stride, Into::add);
  accumulate_seen(tile.queries.size(), tile.keys.size(), w, tile.shape.q, x, dim, c, c_stride,
                  [&](int64_t q, int64_t k) { return tile.visible.sees(q, k); });
}

template <class T>
void accumulate_over_queries(const Tile<T>& tile, const T* w, const Operand<T>& x, int64_t dim, T* c, int64_t c_stride) {
  if (x.finite || tile.visible.complete)
    return gemm_tn(tile.padded_k, x.row_stride, tile.queries.size(), w, tile.shape.k, x.rows, x.row_stride, c, c_stride,
                   Into::add);
  accumulate_seen(tile.keys.size(), tile.queries.size(), w, tile.shape.k, x, dim, c, c_stride,
                  [&](int64_t k, int64_t q) { return tile.visible.sees(q, k); });
}

template struct Operand<float>;
template struct Operand<double>;
template struct Tile<float>;
template struct Tile<double>;
template void accumulate_over_keys(const Tile<float>&, const float*, const Operand<float>&, int64_t, float*, int64_t);
template void accumulate_over_keys(const Tile<double>&, const double*, const Operand<double>&, int64_t, double*, int64_t);
template void accumulate_over_queries(const Tile<float>&, const float*, const Operand<float>&, int64_t, float*, int64_t);
template void accumulate_over_queries(const Tile<double>&, const double*, const Operand<double>&, int64_t, double*, int64_t);

}  // namespace cuflash::cpu
