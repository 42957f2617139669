// Host version of kernels/ptx/global.h, where CTAs run one after the other: only what the emulated kernels need.
#pragma once

namespace cuflash {

constexpr bool kAddsFour = true;  // as on sm_90
template <class Real>
inline void add_to_global(Real* to, Real x, bool adds) {
  if (adds) *to += x;
}
inline void add_four_to_global(float* to, const float (&x)[4], bool adds) {
  for (int n = 0; n < 4; ++n) add_to_global(to + n, x[n], adds);
}
inline unsigned load_acquire(const unsigned* from) { return *from; }
inline void add_release(unsigned* to, unsigned value) { *to += value; }

inline unsigned long long load_relaxed(const unsigned long long* from) { return *from; }
inline void store_relaxed(unsigned long long* to, unsigned long long value) { *to = value; }
inline void compare_and_swap(unsigned long long* at, unsigned long long expected, unsigned long long wanted) {
  if (*at == expected) *at = wanted;
}
inline unsigned long long add_acquire_release(unsigned long long* to, unsigned long long value) {
  const unsigned long long before = *to;
  *to += value;
  return before;
}
template <class T>
inline void materialize(T&) {}
template <class Real, int kCount>
inline void store_to_global(Real* to, const Real (&x)[kCount]) {
  for (int n = 0; n < kCount; ++n) to[n] = x[n];
}
template <class Real, int kCount>
inline void load_from_l2(const Real* from, Real (&x)[kCount]) {
  for (int n = 0; n < kCount; ++n) x[n] = from[n];
}

}  // namespace cuflash
