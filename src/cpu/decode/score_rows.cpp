#include "cpu/decode/score_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "philox.h"

namespace cuflash::cpu {

namespace {

// The mask of a row: its bytes, or the bits of its summary.
struct RowMask {
  const uint8_t* bytes = nullptr;
  const uint32_t* bits = nullptr;

  RowMask(const Problem& p, const ScoreRow& row) {
    const auto b = static_cast<int>(row.head.b), h = static_cast<int>(row.head.h), i = static_cast<int>(row.query);
    if (p.mask) bytes = static_cast<const uint8_t*>(p.mask.data) + p.mask.at(b, h, i);
    else bits = mask_row(mask_of_head(p.summary, b, h), i);
  }
  bool shows(int64_t j) const { return bytes ? bytes[j] != 0 : (bits[j / 32] >> j % 32 & 1) != 0; }
};

}  // namespace

ScoreRow score_row(const Problem& p, const Head& head, int64_t query, Range keys) {
  const Range seen = keys_of_query(p, head.seq, query);
  return {head, query, keys, {std::max(seen.begin, keys.begin), std::min(seen.end, keys.end)}};
}

bool sees(const Problem& p, const ScoreRow& row, int64_t j) {
  return j >= row.visible.begin && j < row.visible.end && (!p.has_mask() || RowMask(p, row).shows(j));
}

template <class T>
static void apply_alibi(const Problem& p, const ScoreRow& row, T* s) {
  const T slope = static_cast<const float*>(p.slopes.data)[p.slopes.at(row.head.b, row.head.h)];
  const T distance = static_cast<T>(row.query + row.head.seq.shift - row.keys.begin);
  for (int64_t k = 0; k < row.keys.size(); ++k) s[k] -= slope * std::abs(distance - static_cast<T>(k));
}

template <class T>
static void apply_bias(const Problem& p, const ScoreRow& row, T* s, T* staging) {
  load_row(p.bias.data, p.bias.dtype, p.bias.at(row.head.b, row.head.h, row.query) + row.keys.begin, row.keys.size(),
           staging);
  for (int64_t k = 0; k < row.keys.size(); ++k) s[k] += staging[k];
}

// Hides keys by a select instead of adding -inf, so that a NaN of a hidden key is discarded.
template <class T>
static void hide(const Problem& p, const ScoreRow& row, T* s) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  const int64_t size = row.keys.size();
  const int64_t begin = std::clamp<int64_t>(row.visible.begin - row.keys.begin, 0, size);
  const int64_t end = std::clamp<int64_t>(row.visible.end - row.keys.begin, begin, size);
  std::fill(s, s + begin, kHidden);
  std::fill(s + end, s + size, kHidden);
  if (!p.has_mask()) return;
  const RowMask mask(p, row);
  for (int64_t k = begin; k < end; ++k) s[k] = mask.shows(row.keys.begin + k) ? s[k] : kHidden;
}

template <class T>
void finish_scores(const Problem& p, const DecodeKernels<T>& kernels, const ScoreRow& row, T* s, T* staging) {
  if (p.softcap > 0) kernels.softcap(row.keys.size(), s, static_cast<T>(p.softcap));
  if (p.slopes) apply_alibi(p, row, s);
  if (p.bias) apply_bias(p, row, s, staging);
  hide(p, row, s);
}

// Blocks start at multiples of 16, so all keys of a dropout group are in one block.
template <class T>
void drop(const Problem& p, const ScoreRow& row, T* w) {
  const DropoutStream stream = dropout_stream(p.dropout.seed, p.dropout.offset, static_cast<uint32_t>(row.head.b),
                                              static_cast<uint32_t>(row.head.h));
  const DropoutRule rule = dropout_rule(p.dropout.p);
  const T kept = static_cast<T>(1 / (1 - p.dropout.p));
  const auto i = static_cast<uint32_t>(row.query);
  for (int64_t first = 0; first < row.keys.size(); first += first % 16 == 6 ? 10 : 2) {
    const DropoutGroup group = dropout_group(stream, i, static_cast<uint32_t>(row.keys.begin + first));
    for (unsigned column = 0; column < 4; ++column) {
      const int64_t k = first + column / 2 * 8 + column % 2;
      if (k < row.keys.size()) w[k] *= rule.keeps(group.window(dropout_row(i), column)) ? kept : T{0};
    }
  }
}

template void finish_scores(const Problem&, const DecodeKernels<float>&, const ScoreRow&, float*, float*);
template void finish_scores(const Problem&, const DecodeKernels<double>&, const ScoreRow&, double*, double*);
template void drop(const Problem&, const ScoreRow&, float*);
template void drop(const Problem&, const ScoreRow&, double*);

}  // namespace cuflash::cpu
