// The types in which a problem is computed: T for scores and sums, E for the operands of products.
#pragma once

#include <type_traits>

#include "cpu/isa/kernels.h"
#include "cpu/plan/plan.h"
#include "problem/problem.h"

namespace cuflash::cpu {

template <class T, class E>
struct Types {};

// 16-bit operands stay as they are if matrix instructions take them; otherwise they are widened when they are packed.
// Backward widens f16: the gradients of scores may be too large or too small for it.
inline bool multiplies_halves(const ForwardProblem& p) {
  return takes_decode(p) ? decode_multiplies_bf16(p) : panels_multiply_halves(p);
}
inline bool multiplies_halves(const BackwardProblem& p) {
  return p.dtype == DType::bf16 && p.dout.dtype == DType::bf16 && has_matrix_kernels(DType::bf16);
}

// The name of the types, for explain.
template <class P>
const char* arithmetic_of(const P& p) {
  const bool stays = multiplies_halves(p);
  switch (p.dtype) {
    case DType::bf16: return stays ? "bf16 products, f32 sums" : "bf16 widened to f32";
    case DType::f16: return stays ? "f16 products, f32 sums" : "f16 widened to f32";
    default: return name_of(p.dtype);
  }
}

// Calls body with the Types of the problem. To keep the stack of a call short, let it return a function.
template <class P, class Body>
auto with_types(const P& p, Body body) {
  if (p.dtype == DType::f64) return body(Types<double, double>());
  if (multiplies_halves(p)) return body(Types<float, Operand16>());
  return body(Types<float, float>());
}

// The table of the problem's types.
template <class T, class E>
const Kernels<T, E>& kernels_of(const Problem& p) {
  if constexpr (std::is_same_v<T, E>) return kernels<T>();
  else return matrix_kernels(p.dtype);
}

// The instruction set that computes the problem. The decode path reports the set of the panels of the same types.
template <class P>
const char* isa_of(const P& p) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) {
    if constexpr (std::is_same_v<T, E>) return isa_name<T>();
    else return matrix_isa_name(p.dtype);
  });
}

}  // namespace cuflash::cpu
