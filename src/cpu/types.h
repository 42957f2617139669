// The types a problem is computed in: T for scores and sums, E for the operands of products.
#pragma once

#include "cpu/kernels.h"
#include "problem/problem.h"

namespace cuflash::cpu {

template <class T, class E>
struct Types {};

// bf16 operands where matrix instructions take them; all other 16-bit values are widened when they are packed.
inline bool multiplies_bf16(const ForwardProblem& p) { return p.dtype == DType::bf16 && has_bf16_kernels(); }
inline bool multiplies_bf16(const BackwardProblem& p) {
  return p.dtype == DType::bf16 && p.dout.dtype == DType::bf16 && has_bf16_kernels();
}

// Calls body with the Types of the problem.
template <class P, class Body>
auto with_types(const P& p, Body body) {
  if (p.dtype == DType::f64) return body(Types<double, double>());
  if (multiplies_bf16(p)) return body(Types<float, Bf16>());
  return body(Types<float, float>());
}

}  // namespace cuflash::cpu
