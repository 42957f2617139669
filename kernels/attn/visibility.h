// Which keys the causal mask and the window let a query see. The CPU backend, the plans and the kernels share this
// definition. Callers clamp the bounds to their lengths; mask tensors are handled separately.
#pragma once

#include "philox.h"

namespace cuflash {

// Rows [begin, end) of the other operand, not clamped to its length.
struct Window {
  long long begin, end;
};

// Keys visible to query i, which is aligned with key i + shift. Both bounds grow with i.
template <class Bounds, class Sequence>
CUFLASH_SHARED_FUNCTION Window key_window(const Bounds& w, const Sequence& s, long long i) {
  return {i + s.shift - w.window_left, i + s.shift + w.window_right + 1};
}
// Queries that see key j: the inverse of key_window.
template <class Bounds, class Sequence>
CUFLASH_SHARED_FUNCTION Window query_window(const Bounds& w, const Sequence& s, long long j) {
  return {j - s.shift - w.window_right, j - s.shift + w.window_left + 1};
}

}  // namespace cuflash
