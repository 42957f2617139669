// The types in which a problem is computed: T for scores and sums, E for the operands of products.
#pragma once

#include "cpu/isa/kernels.h"
#include "cpu/plan/plan.h"
#include "problem/problem.h"

namespace cuflash::cpu {

template <class T, class E>
struct Types {};

// bf16 operands stay bf16 if matrix instructions take them; all other 16-bit values are widened when they are packed.
inline bool multiplies_bf16(const ForwardProblem& p) {
  if (takes_decode(p)) return decode_multiplies_bf16(p);
  return p.dtype == DType::bf16 && has_bf16_kernels();
}
inline bool multiplies_bf16(const BackwardProblem& p) {
  return p.dtype == DType::bf16 && p.dout.dtype == DType::bf16 && has_bf16_kernels();
}

// The name of the types, for explain.
template <class P>
const char* arithmetic_of(const P& p) {
  switch (p.dtype) {
    case DType::bf16: return multiplies_bf16(p) ? "bf16 products, f32 sums" : "bf16 widened to f32";
    case DType::f16: return "f16 widened to f32";
    default: return name_of(p.dtype);
  }
}

// Calls body with the Types of the problem. To keep the stack of a call short, let it return a function.
template <class P, class Body>
auto with_types(const P& p, Body body) {
  if (p.dtype == DType::f64) return body(Types<double, double>());
  if (multiplies_bf16(p)) return body(Types<float, Bf16>());
  return body(Types<float, float>());
}

// The instruction set that computes the problem. The decode path reports the set of the panels of the same types.
template <class P>
const char* isa_of(const P& p) {
  return with_types(p, []<class T, class E>(Types<T, E>) { return isa_name<T, E>(); });
}

}  // namespace cuflash::cpu
