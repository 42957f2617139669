#include "problem/mask_shape.h"

#include <algorithm>

#include "problem/describe_common.h"
#include "problem/disjoint.h"

namespace cuflash {
namespace {

struct Layout {
  Checked block_words, bit_words;  // words of all heads
  int64_t spans;
};

Layout layout_of(const MaskShape& s) {
  const int64_t spans = (s.keys + kMaskSpan - 1) / kMaskSpan, block_rows = (s.rows + kMaskBlock - 1) / kMaskBlock;
  const Checked heads = Checked(s.batch) * s.heads;
  return {round_up(heads * block_rows * kMaskPlanes * spans, 64 / sizeof(unsigned)),
          heads * s.rows * spans * kMaskSpanWords, spans};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const MaskShape& s) {
  return out << "[" << s.batch << ", " << s.heads << ", " << s.rows << ", " << s.keys << "]";
}

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

void require_summary_memory(const Argument& summary) {
  require_tensor(summary, 1, "[words]");
  require_type(summary, DType::i32, "words of 32 bits");
  if (reinterpret_cast<uintptr_t>(summary.t.data) % 64 != 0)
    reject(summary.name, ": ", summary.t.data, " is not aligned to 64 bytes");
}

void require_summary_size(const Argument& summary, const MaskShape& shape) {
  const Checked bytes = mask_summary_bytes(shape);
  constexpr int64_t kWord = sizeof(int32_t);
  if (bytes.at_most(Checked::kLargest) > summary.extent(0) * kWord)
    reject(summary.name, ": has ", summary.extent(0) * kWord, " bytes, the summary of a mask ", shape, " has ", bytes,
           "; ask cuflash_mask_summary_size");
}

MaskProblem describe_mask(const cuflash_tensor& tensor) {
  const Argument mask("mask", tensor);
  require_tensor(mask, 4, "[B or 1, Hq or 1, Sq or 1, Sk]");
  require_type(mask, DType::boolean, "one byte an element");
  const auto distinct = [&](int d) { return mask.repeats(d) ? std::min<int64_t>(1, mask.extent(d)) : mask.extent(d); };
  MaskProblem p;
  p.mask = rows_of(mask, tensor.data);
  p.shape = {distinct(0), distinct(1), distinct(2), mask.extent(3)};
  return p;
}

MaskProblem describe_mask(const cuflash_tensor& tensor, const cuflash_mutable_tensor& memory_of_summary,
                          Memory memory) {
  MaskProblem p = describe_mask(tensor);
  p.memory = memory;
  const Argument summary("summary", memory_of_summary);
  require_summary_memory(summary);
  require_summary_size(summary, p.shape);
  require_disjoint(summary, {"mask", tensor});
  p.summary = mask_summary_at(p.shape, memory_of_summary.data);
  return p;
}

}  // namespace cuflash
