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

// Device compilers have instructions for these.
#if defined(__CUDACC__)
CUFLASH_SHARED_FUNCTION long long larger(long long a, long long b) { return max(a, b); }
CUFLASH_SHARED_FUNCTION long long smaller(long long a, long long b) { return min(a, b); }
#else
CUFLASH_SHARED_FUNCTION long long larger(long long a, long long b) { return a > b ? a : b; }
CUFLASH_SHARED_FUNCTION long long smaller(long long a, long long b) { return a < b ? a : b; }
#endif

// In the lengths of a sequence. Range has members begin and end. Queries and keys are given as ranges that are not
// empty.
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range keys_seen_by(const Window& w, const Sequence& s, long long i) {
  return {larger(0, first_key(w, s, i)), smaller(s.len_k, end_key(w, s, i))};
}
// Keys that at least one of the queries sees, and keys that all of them see.
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range keys_seen_by_any(const Window& w, const Sequence& s, const Range& queries) {
  return {keys_seen_by<Range>(w, s, queries.begin).begin, keys_seen_by<Range>(w, s, queries.end - 1).end};
}
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range keys_seen_by_all(const Window& w, const Sequence& s, const Range& queries) {
  return {keys_seen_by<Range>(w, s, queries.end - 1).begin, keys_seen_by<Range>(w, s, queries.begin).end};
}
// Queries that may see at least one of the keys, and queries that may see all of them.
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range queries_that_see_any(const Window& w, const Sequence& s, const Range& keys) {
  return {larger(0, keys.begin - s.shift - w.window_right), smaller(s.len_q, keys.end - s.shift + w.window_left)};
}
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range queries_that_see_all(const Window& w, const Sequence& s, const Range& keys) {
  return {larger(0, keys.end - 1 - s.shift - w.window_right),
          smaller(s.len_q, keys.begin + 1 - s.shift + w.window_left)};
}

}  // namespace cuflash
