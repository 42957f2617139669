#include "xla_call.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

#include "dtype.h"

namespace cuflash::python::xla {
namespace {

enum class Kind {
  rows,         // q, k, v and what is shaped like them: [B, H, S, D], [B, S, H, D] or [T, H, D]
  row_numbers,  // lse: [B, H, S] or [H, T]
  pairs,        // bias, mask: [B or 1, H or 1, Sq or 1, Sk]
  head_numbers_of_batch,
  numbers
};

size_t rank_of(Kind kind, Layout layout) {
  const bool packed = layout == Layout::thd;
  switch (kind) {
    case Kind::rows: return packed ? 3 : 4;
    case Kind::row_numbers: return packed ? 2 : 3;
    case Kind::pairs: return 4;
    case Kind::head_numbers_of_batch: return 2;
    case Kind::numbers: return 1;
  }
  return 0;
}

// Where a name's tensor goes: input or output is null.
struct Slot {
  std::string_view name;
  Kind kind;
  ConstTensor* input;
  Tensor* output;
};

Slot slot(std::string_view name, Direction direction, Slice& s) {
  const bool forward = direction == Direction::forward;
  const Slot slots[] = {
      {"q", Kind::rows, &s.attention.q, nullptr},
      {"k", Kind::rows, &s.attention.k, nullptr},
      {"v", Kind::rows, &s.attention.v, nullptr},
      {"alibi_slopes", Kind::head_numbers_of_batch, &s.attention.alibi_slopes, nullptr},
      {"bias", Kind::pairs, &s.attention.bias, nullptr},
      {"mask", Kind::pairs, &s.attention.mask, nullptr},
      {"sink", Kind::numbers, &s.attention.sink, nullptr},
      {"cu_seqlens_q", Kind::numbers, &s.attention.cu_seqlens_q, nullptr},
      {"cu_seqlens_k", Kind::numbers, &s.attention.cu_seqlens_k, nullptr},
      {"seqlens_q", Kind::numbers, &s.attention.seqlens_q, nullptr},
      {"seqlens_k", Kind::numbers, &s.attention.seqlens_k, nullptr},
      {"out", Kind::rows, forward ? nullptr : &s.gradients.o, forward ? &s.outputs.o : nullptr},
      {"lse", Kind::row_numbers, forward ? nullptr : &s.gradients.lse, forward ? &s.outputs.lse : nullptr},
      {"dout", Kind::rows, &s.gradients.dout, nullptr},
      {"dlse", Kind::row_numbers, &s.gradients.dlse, nullptr},
      {"dq", Kind::rows, nullptr, &s.gradients.dq},
      {"dk", Kind::rows, nullptr, &s.gradients.dk},
      {"dv", Kind::rows, nullptr, &s.gradients.dv},
      {"dbias", Kind::pairs, nullptr, &s.gradients.dbias},
      {"dsink", Kind::numbers, nullptr, &s.gradients.dsink},
  };
  for (const Slot& candidate : slots) {
    if (candidate.name == name) return candidate;
  }
  throw FlashAttentionError(CUFLASH_INTERNAL, "no tensor is called " + std::string(name));
}

// The dimensions in front of those that belong to one call.
std::span<const int64_t> leading(const Operand& operand, size_t rank) {
  if (operand.shape.size() < rank) {
    throw FlashAttentionError(CUFLASH_INVALID_ARGUMENT, std::string(operand.name) + ": rank " +
                                                            std::to_string(operand.shape.size()) + ", must be " +
                                                            std::to_string(rank));
  }
  return std::span(operand.shape).first(operand.shape.size() - rank);
}

int64_t product(std::span<const int64_t> extents) {
  int64_t n = 1;
  for (int64_t extent : extents) n *= extent;
  return n;
}

// The extents of vmap: for each leading dimension the largest of all operands, which are that or 1.
std::vector<int64_t> batch_extents(const Call& call) {
  std::vector<int64_t> extents;
  Slice unused;
  for (const Operand& operand : call.operands) {
    const auto front = leading(operand, rank_of(slot(operand.name, call.direction, unused).kind, call.layout));
    if (&operand == call.operands.data()) extents.assign(front.begin(), front.end());
    if (front.size() != extents.size()) {
      throw FlashAttentionError(CUFLASH_INVALID_ARGUMENT, std::string(operand.name) + ": rank " +
                                                              std::to_string(operand.shape.size()) +
                                                              " does not fit that of the other arrays");
    }
    for (size_t d = 0; d < front.size(); ++d) {
      if (front[d] != 1) extents[d] = front[d];
    }
  }
  return extents;
}

// The number of this operand's slice, in units of slices, for the call of that index.
int64_t slice_number(std::span<const int64_t> front, std::span<const int64_t> extents, int64_t index) {
  int64_t number = 0, stride = 1;
  for (size_t d = front.size(); d-- > 0;) {
    if (front[d] != 1) number += index % extents[d] * stride;
    index /= extents[d];
    stride *= front[d];
  }
  return number;
}

Tensor view(const Operand& operand, size_t rank, bool swap_heads_and_rows, int64_t number) {
  const auto shape = std::span(operand.shape).last(rank);
  Tensor t{nullptr, operand.dtype, static_cast<int32_t>(rank), {}, {}};
  int64_t stride = 1;
  for (size_t d = rank; d-- > 0;) {
    t.shape[d] = shape[d], t.stride[d] = stride;
    stride *= shape[d];
  }
  if (swap_heads_and_rows) std::swap(t.shape[1], t.shape[2]), std::swap(t.stride[1], t.stride[2]);
  t.data = static_cast<char*>(operand.data) + number * product(shape) * size_of(operand.dtype);
  return t;
}

}  // namespace

Options::Place Options::place(std::string_view name) {
  if (name == "scale") return {&scale, nullptr};
  if (name == "softcap") return {&softcap, nullptr};
  if (name == "dropout_p") return {&dropout_p, nullptr};
  if (name == "has_scale") return {nullptr, &has_scale};
  if (name == "causal") return {nullptr, &causal};
  if (name == "top_left") return {nullptr, &top_left};
  if (name == "window_left") return {nullptr, &window_left};
  if (name == "window_right") return {nullptr, &window_right};
  if (name == "max_seqlen_q") return {nullptr, &max_seqlen_q};
  if (name == "max_seqlen_k") return {nullptr, &max_seqlen_k};
  if (name == "deterministic") return {nullptr, &deterministic};
  if (name == "dropout_seed") return {nullptr, &dropout_seed};
  if (name == "dropout_offset") return {nullptr, &dropout_offset};
  if (name == "num_threads") return {nullptr, &num_threads};
  return {nullptr, nullptr};
}

Layout layout_of(std::string_view name) {
  if (name == "bhsd") return Layout::bhsd;
  if (name == "bshd") return Layout::bshd;
  if (name == "thd") return Layout::thd;
  throw FlashAttentionError(CUFLASH_INVALID_ARGUMENT,
                            "layout: '" + std::string(name) + "' must be 'bhsd', 'bshd' or 'thd'");
}

int64_t slices(const Call& call) { return product(batch_extents(call)); }

Slice slice(const Call& call, int64_t index) {
  const std::vector<int64_t> extents = batch_extents(call);
  Slice s;
  for (const Operand& operand : call.operands) {
    const Slot target = slot(operand.name, call.direction, s);
    const size_t rank = rank_of(target.kind, call.layout);
    const bool swap = target.kind == Kind::rows && call.layout == Layout::bshd;
    const Tensor t = view(operand, rank, swap, slice_number(leading(operand, rank), extents, index));
    if (target.input) *target.input = t;
    if (target.output) *target.output = t;
  }
  const Options& o = call.options;
  if (o.has_scale) s.attention.scale = o.scale;
  s.attention.causal = o.causal != 0;
  s.attention.alignment = o.top_left ? Alignment::top_left : Alignment::bottom_right;
  s.attention.window_left = o.window_left, s.attention.window_right = o.window_right;
  s.attention.softcap = o.softcap;
  s.attention.dropout_p = o.dropout_p;
  s.attention.dropout_seed = static_cast<uint64_t>(o.dropout_seed);
  s.attention.dropout_offset = static_cast<uint64_t>(o.dropout_offset);
  s.attention.max_seqlen_q = o.max_seqlen_q, s.attention.max_seqlen_k = o.max_seqlen_k;
  return s;
}

void run(Direction direction, const Slice& s, const Execution& execution) {
  if (direction == Direction::forward) {
    flash_attention_forward(s.attention, s.outputs, execution);
  } else {
    flash_attention_backward(s.attention, s.gradients, execution);
  }
}

size_t workspace_size(Direction direction, const Slice& s, const Execution& execution) {
  return direction == Direction::forward ? cuflash::workspace_size(s.attention, s.outputs, execution)
                                         : cuflash::workspace_size(s.attention, s.gradients, execution);
}

}  // namespace cuflash::python::xla
