// Rotary embedding of one row.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace cuflash::cpu {

// Turns the row that starts at element `begin`, in place. Computed in f32, or f64 for f64, and rounded once.
void rotate_row(const Rotary& rotary, int64_t position, void* data, DType dtype, int64_t begin);

}  // namespace cuflash::cpu
