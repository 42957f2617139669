#include "xla_call.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

#include "dtype.h"

namespace cuflash::python::xla {
namespace {

enum class Kind {
  rows,                // q, k, v and arrays shaped like them: [B, H, S, D], [B, S, H, D] or [T, H, D]
  per_row,             // lse: [B, H, S] or [H, T]
  scores,              // bias, mask: [B or 1, H or 1, Sq or 1, Sk]
  per_batch_and_head,  // [B, H]
  vector
};

size_t rank_of(Kind kind, Layout layout) {
  const bool packed = layout == Layout::thd;
  switch (kind) {
    case Kind::rows: return packed ? 3 : 4;
    case Kind::per_row: return packed ? 2 : 3;
    case Kind::scores: return 4;
    case Kind::per_batch_and_head: return 2;
    case Kind::vector: return 1;
  }
  return 0;
}

// The member that the tensor of a name is assigned to: input or output is null.
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
#define CUFLASH_SLOT(name, kind) {#name, Kind::kind, &s.attention.name, nullptr},
      CUFLASH_ATTENTION_ARRAYS(CUFLASH_SLOT)
#undef CUFLASH_SLOT
          {"out", Kind::rows, forward ? nullptr : &s.gradients.o, forward ? &s.outputs.o : nullptr},
      {"lse", Kind::per_row, forward ? nullptr : &s.gradients.lse, forward ? &s.outputs.lse : nullptr},
      {"dout", Kind::rows, &s.gradients.dout, nullptr},
      {"dlse", Kind::per_row, &s.gradients.dlse, nullptr},
      {"dq", Kind::rows, nullptr, &s.gradients.dq},
      {"dk", Kind::rows, nullptr, &s.gradients.dk},
      {"dv", Kind::rows, nullptr, &s.gradients.dv},
      {"dbias", Kind::scores, nullptr, &s.gradients.dbias},
      {"dsink", Kind::vector, nullptr, &s.gradients.dsink},
  };
  for (const Slot& candidate : slots) {
    if (candidate.name == name) return candidate;
  }
  throw FlashAttentionError(CUFLASH_INTERNAL, "no tensor is called " + std::string(name));
}

// The leading dimensions that vmap added to those of one call.
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

// The extents of vmap: for each leading dimension, the largest among the operands; the others have 1 there.
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

// The slice of this operand that the call with this index reads or writes.
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

static Options::Field field_of(double& option) { return {.real = &option}; }
static Options::Field field_of(int64_t& option) { return {.integer = &option}; }

Options::Field Options::find(std::string_view name) {
#define CUFLASH_FIND(type, option, value) \
  if (name == #option) return field_of(option);
  CUFLASH_ATTENTION_OPTIONS(CUFLASH_FIND, CUFLASH_FIND)
#undef CUFLASH_FIND
  if (name == "has_scale") return field_of(has_scale);
  if (name == "deterministic") return field_of(deterministic);
  if (name == "num_threads") return field_of(num_threads);
  return {};
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
#define CUFLASH_ASSIGN(type, name, value) s.attention.name = static_cast<type>(o.name);
  CUFLASH_ATTENTION_OPTIONS(CUFLASH_ASSIGN, CUFLASH_NOTHING)
#undef CUFLASH_ASSIGN
  if (o.has_scale) s.attention.scale = o.scale;
  s.attention.alignment = o.top_left ? Alignment::top_left : Alignment::bottom_right;
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
