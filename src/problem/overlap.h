// Whether two tensors share memory.
#pragma once

#include "problem/tensor_rules.h"

namespace cuflash {

// The bytes from the first to the last element.
struct Extent {
  uintptr_t begin = 0, end = 0;

  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};
Extent extent_of(const Argument& a);  // empty if the tensor is absent or has no elements

// Whether the two tensors certainly share an element; both must be valid. Views such as slices of a packed QKV may
// interleave without sharing one. If the strides are unrelated, the search stops after a few hundred steps and returns
// false.
bool share_memory(const Argument& a, const Argument& b);

}  // namespace cuflash
