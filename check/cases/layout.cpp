#include "check/cases/layout.h"

#include <algorithm>
#include <array>

namespace cuflash::check {
namespace {

constexpr int64_t kMeaningless = 12345;  // a stride along an extent of 1

// Strides of `shape`; `order` lists its dimensions from the innermost. An empty extent does not make a stride 0.
std::vector<int64_t> strides_of(const std::vector<int64_t>& shape, const std::vector<size_t>& order, int64_t gap) {
  std::vector<int64_t> stride(shape.size());
  int64_t step = 1;
  for (const size_t d : order) {
    stride[d] = step;
    step = step * std::max<int64_t>(1, shape[d]) + gap;
  }
  return stride;
}

std::vector<size_t> dense_order(Order order) {
  switch (order) {
    case Order::bhsd: return {3, 2, 1, 0};
    case Order::bshd: return {3, 1, 2, 0};
    case Order::sbhd: return {3, 1, 0, 2};
    case Order::hbsd: return {3, 2, 0, 1};
  }
  return {};
}

}  // namespace

GuardedTensor place_rows(const std::string& name, DType dtype, bool packed, const RowsShape& s, const Layout& layout) {
  std::vector<int64_t> shape{s.batch, s.heads, s.length, s.dim};
  std::vector<size_t> order = dense_order(layout.order);
  if (packed) {
    shape = {s.length, s.heads, s.dim};
    order = layout.order == Order::hbsd ? std::vector<size_t>{2, 0, 1} : std::vector<size_t>{2, 1, 0};
  }
  std::vector<int64_t> stride = strides_of(shape, order, layout.gap);
  if (layout.repeat_batch && !packed) stride[0] = 0;
  if (layout.repeat_heads) stride[1] = 0;
  if (layout.odd_unit_strides)
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] == 1) stride[d] = kMeaningless;
  return {name, dtype, shape, stride, layout.offset};
}

GuardedTensor place_lse(const std::string& name, DType dtype, bool packed, const RowsShape& s, const Layout& layout) {
  const std::vector<int64_t> shape =
      packed ? std::vector<int64_t>{s.heads, s.length} : std::vector<int64_t>{s.batch, s.heads, s.length};
  const std::vector<size_t> order = packed ? std::vector<size_t>{1, 0} : std::vector<size_t>{2, 1, 0};
  return {name, dtype, shape, strides_of(shape, order, layout.gap), layout.offset};
}

GuardedTensor place_scores(const std::string& name, DType dtype, const Case& c, const ScoreLayout& layout) {
  std::vector<int64_t> shape{c.batch, c.heads_q, c.len_q, c.len_k};
  for (size_t d = 0; d < layout.extents.size(); ++d)
    if (layout.extents[d] == Extent::one) shape[d] = 1;
    else if (layout.extents[d] == Extent::repeated) shape[d] = std::min<int64_t>(1, shape[d]);
  return {name, dtype, shape, strides_of(shape, {3, 2, 1, 0}, layout.gap), layout.offset};
}

GuardedTensor place_vector(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
  std::vector<size_t> order;
  for (size_t d = shape.size(); d-- > 0;) order.push_back(d);
  return {name, dtype, shape, strides_of(shape, order, 0), 1};
}

Tensor repeated(const GuardedTensor& scores, const Case& c, const ScoreLayout& layout) {
  Tensor t = scores.view();
  const std::array<int64_t, 3> full{c.batch, c.heads_q, c.len_q};
  for (size_t d = 0; d < full.size(); ++d)
    if (layout.extents[d] == Extent::repeated) t.shape[d] = full[d], t.stride[d] = 0;
  return t;
}

}  // namespace cuflash::check
