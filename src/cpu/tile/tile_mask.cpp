#include "cpu/tile/tile_mask.h"

#include <algorithm>

#include "cpu/tile/summarize_mask.h"

namespace cuflash::cpu {

TileMask::TileMask(Arena& arena, const Problem& p, int64_t lanes, TileShape shape)
    : given_(p.has_mask()), lanes_(lanes), tile_k_(shape.k) {
  if (!given_) return;
  words_ = (shape.k + 31) / 32;
  const int64_t panels = (shape.q + lanes - 1) / lanes;
  panels_ = arena.take<PanelMask>(panels);
  bits_ = arena.take<uint32_t>(panels * words_ * lanes);
  row_ = arena.take<uint32_t>(words_ + 1);
}

// The keys of a row of the summary, which start at a multiple of 16.
static void copy_bits(const uint32_t* row, int64_t row_words, int64_t first, uint32_t* words, int64_t count) {
  const int64_t begin = first / 32, shift = first % 32;
  const auto at = [&](int64_t w) { return w < row_words ? row[w] : 0; };
  for (int64_t w = 0; w < count; ++w)
    words[w] = shift == 0 ? at(begin + w) : at(begin + w) >> shift | at(begin + w + 1) << (32 - shift);
}

void TileMask::load_words(const Problem& p, int64_t b, int64_t h, Range queries, Range keys, uint32_t* words) {
  const bool one_row = p.summary.blocks ? p.summary.rows == 1 : p.mask.row_stride == 0;
  const MaskOfHead summary =
      p.summary.blocks ? mask_of_head(p.summary, static_cast<int>(b), static_cast<int>(h)) : MaskOfHead{};
  for (int64_t lane = 0; lane < lanes_; ++lane) {
    if (lane < queries.size() && (lane == 0 || !one_row)) {
      const int64_t i = queries.begin + lane;
      if (p.summary.blocks)
        copy_bits(mask_row(summary, static_cast<int>(i)), int64_t{summary.spans} * kMaskSpanWords, keys.begin, row_,
                  words_);
      else
        pack_mask(static_cast<const uint8_t*>(p.mask.data) + p.mask.at(b, h, i) + keys.begin, keys.size(), row_,
                  words_);
    } else if (lane >= queries.size()) {
      std::fill_n(row_, words_, 0u);
    }
    for (int64_t w = 0; w < words_; ++w) words[w * lanes_ + lane] = row_[w];
  }
}

void TileMask::classify(const Range& queries, int64_t keys, const uint32_t* words, PanelMask& panel) const {
  int64_t begin = keys, end = 0;
  bool all = true;
  for (int64_t w = 0; w < words_; ++w) {
    const uint32_t exist = keys >= 32 * (w + 1) ? ~0u : keys <= 32 * w ? 0 : ~0u >> (32 * (w + 1) - keys);
    uint32_t any = 0, hidden = 0;
    for (int64_t lane = 0; lane < queries.size(); ++lane)
      any |= words[w * lanes_ + lane], hidden |= ~words[w * lanes_ + lane];
    any &= exist;
    all &= (hidden & exist) == 0;
    if (any == 0) continue;
    begin = std::min<int64_t>(begin, 32 * w + __builtin_ctz(any));
    end = 32 * (w + 1) - __builtin_clz(any);
  }
  panel.visibility = end == 0 ? MaskVisibility::none : all ? MaskVisibility::all : MaskVisibility::some;
  panel.keys = {begin, end};
  panel.words = all ? nullptr : words;
}

void TileMask::load(const Problem& p, int64_t b, int64_t h, Range queries, Range keys) {
  if (!given_) return;
  any_ = false;
  const Range whole{keys.begin, std::min(keys.begin + tile_k_, p.mask_len_k)};
  for (int64_t first = 0; first < queries.size(); first += lanes_) {
    PanelMask& panel = panels_[first / lanes_];
    const Range rows{queries.begin + first, std::min(queries.begin + first + lanes_, p.mask_len_q)};
    uint32_t* words = bits_ + first * words_;
    if (p.summary.blocks) {
      const MaskOfHead summary = mask_of_head(p.summary, static_cast<int>(b), static_cast<int>(h));
      panel = {mask_visibility(summary, static_cast<int>(rows.begin), static_cast<int>(rows.size()),
                               static_cast<int>(whole.begin), static_cast<int>(whole.size()))};
    } else {
      panel.visibility = MaskVisibility::some;
    }
    if (panel.visibility == MaskVisibility::some) {
      load_words(p, b, h, rows, whole, words);
      classify(rows, whole.size(), words, panel);
    }
    any_ |= panel.visibility != MaskVisibility::none;
  }
}

}  // namespace cuflash::cpu
