#include "problem/mask_shape.h"

#include <algorithm>

namespace cuflash {
namespace {

struct Layout {
  Checked block_words, bit_words;  // of all heads
  int64_t spans;
};

Layout layout_of(const MaskShape& s) {
  const int64_t spans = (s.keys + kMaskSpan - 1) / kMaskSpan, block_rows = (s.rows + kMaskBlock - 1) / kMaskBlock;
  const Checked heads = Checked(s.batch) * s.heads;
  return {round_up(heads * block_rows * 2 * spans, 64 / sizeof(unsigned)), heads * s.rows * spans * kMaskSpanWords,
          spans};
}

}  // namespace

MaskShape mask_shape_of(const Problem& p) {
  const ConstRows& m = p.mask;
  const auto distinct = [](int64_t stride, int64_t extent) {
    return stride == 0 ? std::min<int64_t>(1, extent) : extent;
  };
  return {distinct(m.batch_stride, p.batch), distinct(m.head_stride, p.heads_q), distinct(m.row_stride, p.mask_len_q),
          p.mask_len_k};
}

Checked mask_summary_bytes(const MaskShape& shape) {
  const Layout layout = layout_of(shape);
  return (layout.block_words + layout.bit_words) * int64_t{sizeof(unsigned)};
}

MaskSummary mask_summary_at(const MaskShape& shape, void* data) {
  const Layout layout = layout_of(shape);
  auto* words = static_cast<unsigned*>(data);
  MaskSummary m{};
  m.blocks = words, m.bits = words + layout.block_words.value("mask: the number of its blocks is");
  m.head_step = shape.heads > 1, m.batch_step = shape.batch > 1 ? static_cast<int>(shape.heads) : 0;
  m.rows = static_cast<int>(shape.rows), m.spans = static_cast<int>(layout.spans);
  return m;
}

}  // namespace cuflash
