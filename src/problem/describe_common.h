// Shared by all calls: rows of tensors, scores and their options, outputs.
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"
#include "problem/tensor_rules.h"

namespace cuflash {

// The rows of a [B, H, S, D] or packed [T, H, D] tensor; data stays null if the tensor is empty.
template <class Pointer>
BasicRows<Pointer> rows_of(const Argument& a, Pointer data) {
  if (a.t.rank == 3) return {data, a.dtype(), 0, a.step(1), a.step(0)};
  return {data, a.dtype(), a.step(0), a.step(1), a.step(2)};
}
// The rows of an LSE, [B, H, S] or packed [H, T].
template <class Pointer>
BasicRows<Pointer> lse_rows_of(const Argument& a, Pointer data) {
  if (a.t.rank == 2) return {data, a.dtype(), 0, a.step(0), a.step(1)};
  return {data, a.dtype(), a.step(0), a.step(1), a.step(2)};
}
template <class Pointer>
BasicHeadValues<Pointer> head_values_of(const Argument& a, Pointer data) {
  if (a.t.rank == 1) return {data, a.dtype(), 0, a.step(0)};
  return {data, a.dtype(), a.step(0), a.step(1)};
}

// Describes scale, softcap, window, alignment and dropout. Requires dim_qk.
void describe_scores(Problem& p, const cuflash_attention& a);
// Describes ALiBi slopes, bias, mask and sink. Requires sizes and lengths.
void describe_score_inputs(Problem& p, const cuflash_attention& a);

// Require the shape of o or lse for these queries. The tensor is an output of this call (now) or was saved by an
// earlier one (before).
enum class Written : bool { before, now };
void require_like_o(const Argument& t, const TensorView& q, int64_t dim_v, Written written);
void require_like_lse(const Argument& t, const TensorView& q, Written written);

}  // namespace cuflash
