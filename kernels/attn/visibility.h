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

// In the lengths of a sequence. Range has members begin and end. Queries and keys are given as ranges that are not
// empty.
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range keys_seen_by(const Window& w, const Sequence& s, long long i) {
  const long long first = first_key(w, s, i), end = end_key(w, s, i), length = s.len_k;
  return {first > 0 ? first : 0, end < length ? end : length};
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
  const long long first = keys.begin - s.shift - w.window_right, end = keys.end - s.shift + w.window_left,
                  length = s.len_q;
  return {first > 0 ? first : 0, end < length ? end : length};
}
template <class Range, class Window, class Sequence>
CUFLASH_SHARED_FUNCTION Range queries_that_see_all(const Window& w, const Sequence& s, const Range& keys) {
  const long long first = keys.end - 1 - s.shift - w.window_right, end = keys.begin + 1 - s.shift + w.window_left,
                  length = s.len_q;
  return {first > 0 ? first : 0, end < length ? end : length};
}

}  // namespace cuflash
