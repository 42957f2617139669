#include "cpu/plan/heads_as_rows.h"

#include "checked.h"
#include "cpu/plan/plan.h"

namespace cuflash::cpu {

// With as many keys, copying rows costs little.
constexpr int64_t kEnoughKeys = 512;

// No option may depend on the head, or on the position of a row in the tensor.
static bool allows_heads_as_rows(const Problem& p) {
  constexpr int64_t kMaxRows = 128;  // more fill panels and amortise the packing of keys by themselves
  const bool has_options = p.slopes || p.bias || p.has_mask() || p.sink || p.dropout.p > 0;
  return p.group() > 1 && p.len_q <= kMaxRows && !p.packed() && !p.used_q && !has_options;
}

bool group_fills_panels(const Problem& p) {
  constexpr int64_t kPanel = 32;
  return !p.cache && p.group() * p.len_q >= kPanel && p.len_k >= kEnoughKeys && allows_heads_as_rows(p);
}

bool has_heads_as_rows(const ForwardProblem& p) {
  return allows_heads_as_rows(p) && !takes_decode(p) && (p.len_k >= kEnoughKeys || is_uniform(p));
}

bool is_uniform(const ForwardProblem& p) {
  const auto follow = [&](const auto& rows) {
    int64_t stride = 0;
    return !__builtin_mul_overflow(p.len_q, rows.row_stride, &stride) && rows.head_stride == stride &&
           !__builtin_mul_overflow(p.group(), rows.head_stride, &stride);
  };
  return follow(p.q) && follow(p.o) && (!p.lse || follow(p.lse));
}

ForwardProblem heads_as_rows(const ForwardProblem& p) {
  ForwardProblem rows = p;
  const int64_t group = p.group();
  rows.head_rows = p.len_q, rows.len_q = group * p.len_q, rows.heads_q = p.heads_k;
  // Copies that only a size query knows may be larger than any memory.
  const auto widen = [&](int64_t& stride) {
    if (__builtin_mul_overflow(stride, group, &stride)) stride = Checked::kLargest;
  };
  widen(rows.q.head_stride), widen(rows.o.head_stride), widen(rows.lse.head_stride);
  return rows;
}

}  // namespace cuflash::cpu
