// What is described alike in every call: rows of tensors, scores and their options, outputs.
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"
#include "problem/tensor_rules.h"

namespace cuflash {

// [B, H, S, D] in its four dimensions, or packed [T, H, D]; data stays null where there is nothing to address.
template <class Pointer>
BasicRows<Pointer> rows_of(const Argument& a, Pointer data) {
  if (a.t.rank == 3) return {data, a.dtype(), 0, a.step(1), a.step(0)};
  return {data, a.dtype(), a.step(0), a.step(1), a.step(2)};
}
// [B, H, S], or packed [H, T].
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

// Scale, softcap, window, alignment and dropout. dim_qk is known.
void describe_scores(Problem& p, const cuflash_attention& a);
// ALiBi slopes, bias, mask and sink. Sizes and lengths are known.
void describe_score_inputs(Problem& p, const cuflash_attention& a);

// Shaped as o, or as lse, of these queries: an output, or one that was saved.
enum class Written : bool { before, now };
void require_like_o(const Argument& t, const TensorView& q, int64_t dim_v, Written written);
void require_like_lse(const Argument& t, const TensorView& q, Written written);

}  // namespace cuflash
