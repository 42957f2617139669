#include "cpu/tile/panel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/tile/read_ahead.h"
#include "philox.h"

namespace cuflash::cpu {

template <class T, class E>
Panel<T, E>::Panel(Arena& arena, const Problem& p, const Kernels<T, E>& kernels, int64_t tile_k)
    : kernels(kernels), session(kernels) {
  const int64_t lanes = kernels.lanes, area = round_up(tile_k, kernels.rows) * lanes;
  s = arena.take<T>(area);
  if (kernels.to_right) right = arena.take<E>(round_up(tile_k, kernels.step) * lanes);
  if (p.dropout.p > 0) keep = arena.take<T>(round_up(tile_k, 16) * lanes);
  const int64_t dim = round_up(std::max(p.dim_qk, p.dim_v), kernels.step);
  const int64_t of_scores = p.bias ? lanes * tile_k : 0;
  staging = arena.take<T>(std::max(of_scores, std::max(lanes, kernels.rows) * dim));
  shrink = arena.take<T>(lanes);
  visible.begin = arena.take<int32_t>(lanes);
  visible.end = arena.take<int32_t>(lanes);
}

// Trims keys that no query of the panel sees from both ends of the tile, in units of whole left panels, steps and
// dropout groups. On the diagonal this saves half of the work.
static Range trimmed(Range tile, Range seen, int64_t unit) {
  const int64_t begin = std::max(tile.begin, tile.begin + (seen.begin - tile.begin) / unit * unit);
  return {begin, std::min(tile.end, begin + round_up(seen.end - begin, unit))};
}

template <class T, class E>
void Panel<T, E>::compute_scores(const Problem& p, const Head& head, Range new_queries, Range tile,
                                 const PanelMask& mask, const E* q_right, const E* k_left, Ahead ahead) {
  queries = new_queries;
  const Range by_position = keys_of_queries(p, head.seq, queries);
  Range seen{std::max(by_position.begin, tile.begin + mask.keys.begin),
             std::min(by_position.end, tile.begin + mask.keys.end)};
  if (seen.empty()) {  // positions and mask show different keys; the products need one, of those that are packed
    seen.begin = std::max(by_position.begin, tile.begin);
    seen.end = seen.begin + 1;
  }
  keys = trimmed(tile, seen, key_unit());
  first_key = keys.begin - tile.begin;
  if (p.bias && kernels.fetches_ahead) append(score_rows(p.bias, head), {0, queries.size()}, ahead);
  const int64_t dim = round_up(p.dim_qk, kernels.step);
  kernels.multiply(keys.size(), p.dim_qk, k_left + first_key * dim, dim * kernels.rows, q_right, s, Into::overwrite,
                   ahead);
  apply_scale(p);
  if (p.slopes) {
    const T slope = static_cast<const float*>(p.slopes.data)[p.slopes.at(head.b, head.h)];
    kernels.alibi(keys.size(), s, slope, queries.begin + head.seq.shift - keys.begin);
  }
  visible.bias_hides = p.bias && kernels.add_rows(score_rows(p.bias, head), std::exchange(scale, T{1}), s, staging);
  find_visible(p, head, mask);
  if (!visible.complete) kernels.hide(keys.size(), s, visible.begin, visible.end);
  if (mask.words) kernels.mask(keys.size(), s, mask.words, first_key);
  if (keep) draw_dropout(p, head);
}

// The softmax applies the scale for free, and so does the bias, unless something must be added to the scores before.
template <class T, class E>
void Panel<T, E>::apply_scale(const Problem& p) {
  scale = static_cast<T>(p.scale);
  const bool now = p.softcap > 0 || p.slopes || (!p.bias && !(scale > 0));
  if (!now) return;
  if (p.softcap > 0) kernels.softcap(keys.size(), s, scale, static_cast<T>(p.softcap), cap_slope);
  else kernels.multiply_scores(keys.size(), s, scale);
  scale = 1;
}

// The panel's block of a tensor [batch, heads_q, len_q, len_k].
template <class T, class E>
Source Panel<T, E>::score_rows(const ConstRows& from, const Head& head) const {
  return {from.data,       from.dtype,     from.at(head.b, head.h, queries.begin) + keys.begin,
          from.row_stride, queries.size(), keys.size()};
}

template <class T, class E>
void Panel<T, E>::find_visible(const Problem& p, const Head& head, const PanelMask& mask) {
  visible.complete = !mask.words && tile_kind(p, head.seq, queries, keys) == TileKind::full;
  visible.mask = mask.words, visible.first_key = first_key, visible.lanes = kernels.lanes;
  if (visible.complete) {
    std::fill_n(visible.begin, kernels.lanes, 0);
    std::fill_n(visible.end, queries.size(), static_cast<int32_t>(keys.size()));
    std::fill(visible.end + queries.size(), visible.end + kernels.lanes, 0);
    return;
  }
  for (int64_t q = 0; q < kernels.lanes; ++q) {
    Range range{0, 0};
    if (q < queries.size()) range = keys_of_query(p, head.seq, queries.begin + q);
    visible.begin[q] = static_cast<int32_t>(std::clamp<int64_t>(range.begin - keys.begin, 0, keys.size()));
    visible.end[q] = static_cast<int32_t>(std::clamp<int64_t>(range.end - keys.begin, 0, keys.size()));
  }
}

// Panels and tiles start at multiples of 16, so a group of eight dropout decisions never straddles two of them, and
// each is drawn once.
template <class T, class E>
void Panel<T, E>::draw_dropout(const Problem& p, const Head& head) {
  const auto b = static_cast<uint32_t>(head.b), h = static_cast<uint32_t>(head.h);
  const DropoutStream stream = dropout_stream(p.dropout.seed, p.dropout.offset, b, h);
  const DropoutDraw draw{stream.key, stream.begin_i + dropout_group_row(static_cast<uint32_t>(queries.begin)),
                         stream.begin_j + dropout_group_column(static_cast<uint32_t>(keys.begin)),
                         dropout_rule(p.dropout.p)};
  kernels.draw_dropout(keys.size(), draw, static_cast<T>(1 / (1 - p.dropout.p)), keep);
}

// weight_of(key, query) returns the weights of rows that are not in the panels.
template <class T, class E>
template <class Weight>
void Panel<T, E>::add_operand(const E* weights, const RowOperand<E>& x, T* c, Into into, const T* factor,
                              Weight weight_of) {
  const E* left = x.panels + first_key * kernels.rows;
  const int64_t stride = x.capacity * kernels.rows;
  if (factor) kernels.rescale_and_multiply(x.source.dim, keys.size(), left, stride, weights, c, factor);
  else kernels.multiply(x.source.dim, keys.size(), left, stride, weights, c, into, {});
  for (int64_t n = 0; n < x.nonfinite_count; ++n) {
    const int64_t k = x.nonfinite[n] - first_key;
    x.read(x.nonfinite[n], staging);
    for (int64_t d = 0; d < x.source.dim; ++d)
      for (int64_t q = 0; q < queries.size(); ++q)
        if (visible.sees(q, k)) c[d * kernels.lanes + q] += staging[d] * weight_of(k, q);
  }
}

template <class T, class E>
void Panel<T, E>::add_weighted(const T* w, const RowOperand<E>& x, T* c, Into into, const T* factor,
                               const RoundedSums<T>* sums) {
  const auto weight = [&](int64_t k, int64_t q) { return w[k * kernels.lanes + q]; };
  if constexpr (std::is_same_v<T, E>) return add_operand(w, x, c, into, factor, weight);
  else kernels.to_right(keys.size(), w, right, sums), add_operand(right, x, c, into, factor, weight);
}

// Computes a weight as the kernels do, up to a few bits, and 0 where they have 0.
template <class T, class E>
T Panel<T, E>::weight_of(T score, T top) const {
  const T power = scale * (top == -std::numeric_limits<T>::infinity() ? score : score - top);
  return power < std::log(std::numeric_limits<T>::min()) ? 0 : std::exp(power);
}

// Whether V holds NaN or Inf must not decide how the weights are computed: in a row that no query sees, it changes no
// bit.
template <class T, class E>
void Panel<T, E>::add_softmax(const RowOperand<E>& v, T* m, T* l, T* o, int64_t o_rows, Into into,
                              const RoundedSums<T>& sums) {
  if (kernels.softmax_to_right) {
    kernels.softmax_to_right(keys.size(), s, scale, keep, m, l, o, o_rows, right, sums);
    return add_operand(right, v, o, into, nullptr, [&](int64_t k, int64_t q) {
      const int64_t n = k * kernels.lanes + q;
      return weight_of(s[n], m[q]) * (keep ? keep[n] : T{1});
    });
  }
  const bool rescale = kernels.softmax(keys.size(), s, scale, m, l, shrink) && into == Into::add;
  if (rescale && kernels.to_right)
    for (int64_t n = 0; n < kernels.lanes; ++n) sums.before[n] *= shrink[n], sums.after[n] *= shrink[n];
  if (keep) kernels.drop(keys.size(), s, keep);
  add_weighted(s, v, o, into, rescale ? shrink : nullptr, &sums);
}

template struct Panel<float, float>;
template struct Panel<double, double>;
template struct Panel<float, Operand16>;

}  // namespace cuflash::cpu
