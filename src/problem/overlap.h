// Whether two tensors share memory.
#pragma once

#include "problem/tensor_rules.h"

namespace cuflash {

// The bytes from the first element's to the last's.
struct Extent {
  uintptr_t begin = 0, end = 0;

  bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};
Extent extent_of(const Argument& a);  // empty where the tensor is absent or has no elements

// True only where an element of one certainly lies on an element of the other. Views may interleave without sharing one,
// such as slices of a packed QKV. Where strides have nothing in common the search ends after a few hundred steps, and the
// answer is false. Both tensors are valid.
bool share_memory(const Argument& a, const Argument& b);

}  // namespace cuflash
