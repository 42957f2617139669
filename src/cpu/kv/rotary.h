// Rotary embedding of one row.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace cuflash::cpu {

// Rotates the row that starts at element `begin`, in place. Computes in f32 (f64 for f64) and rounds once.
void rotate_row(const Rotary& rotary, int64_t position, void* data, DType dtype, int64_t begin);

}  // namespace cuflash::cpu
