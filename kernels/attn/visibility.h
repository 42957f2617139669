// Which keys the causal mask and the window let a query see. The CPU backend, the plans and the kernels share this
// definition. Callers clamp the bounds to their lengths; mask tensors are handled separately.
#pragma once

#include "shared_function.h"

namespace cuflash {

// Query i is aligned with key i + shift and sees keys [first_key, end_key). Both bounds grow with i.
template <class Window, class Sequence>
CUFLASH_SHARED_FUNCTION long long first_key(const Window& w, const Sequence& s, long long i) {
  return i + s.shift - w.window_left;
}
template <class Window, class Sequence>
CUFLASH_SHARED_FUNCTION long long end_key(const Window& w, const Sequence& s, long long i) {
  return i + s.shift + w.window_right + 1;
}

}  // namespace cuflash
