// Rows of a tensor as copy instructions see them.
#pragma once

#include "config.h"
#include "problem/problem.h"

namespace cuflash::cuda {

inline Element element_of(DType type) { return static_cast<Element>(type); }

// Whether every row starts on a 16-byte boundary.
template <class Pointer>
bool has_vector_rows(const BasicRows<Pointer>& rows) {
  const int64_t per_vector = 16 / static_cast<int64_t>(size_of(rows.dtype));
  const auto address = reinterpret_cast<uintptr_t>(rows.data);
  return address % 16 == 0 && (rows.batch_stride | rows.head_stride | rows.row_stride) % per_vector == 0;
}

}  // namespace cuflash::cuda
