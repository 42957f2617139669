#include "cpu/kv/rotary.h"

#include <algorithm>

#include "dtype.h"

namespace cuflash::cpu {
namespace {

constexpr int64_t kPairs = 32;  // processed at a time

template <class T>
struct Angles {
  T cos[kPairs], sin[kPairs];

  Angles(const Rotary& rotary, int64_t position, int64_t first, int64_t count) {
    load_row(rotary.cos, rotary.dtype, position * rotary.cos_stride + first, count, cos);
    load_row(rotary.sin, rotary.dtype, position * rotary.sin_stride + first, count, sin);
  }
  void rotate(int64_t pair, T& a, T& b) const {
    const T x = a, y = b;
    a = x * cos[pair] - y * sin[pair];
    b = y * cos[pair] + x * sin[pair];
  }
};

// Rotates pairs of adjacent elements.
template <class T>
void rotate_interleaved(const Angles<T>& angles, int64_t count, void* data, DType dtype, int64_t begin) {
  T x[2 * kPairs];
  load_row(data, dtype, begin, 2 * count, x);
  for (int64_t n = 0; n < count; ++n) angles.rotate(n, x[2 * n], x[2 * n + 1]);
  store_row(data, dtype, begin, 2 * count, x);
}

// Rotates pairs that are `half` elements apart.
template <class T>
void rotate_halves(const Angles<T>& angles, int64_t count, void* data, DType dtype, int64_t begin, int64_t half) {
  T low[kPairs], high[kPairs];
  load_row(data, dtype, begin, count, low);
  load_row(data, dtype, begin + half, count, high);
  for (int64_t n = 0; n < count; ++n) angles.rotate(n, low[n], high[n]);
  store_row(data, dtype, begin, count, low);
  store_row(data, dtype, begin + half, count, high);
}

template <class T>
void rotate(const Rotary& rotary, int64_t position, void* data, DType dtype, int64_t begin) {
  const int64_t half = rotary.dim / 2;
  for (int64_t first = 0; first < half; first += kPairs) {
    const int64_t count = std::min(kPairs, half - first);
    const Angles<T> angles(rotary, position, first, count);
    if (rotary.interleaved) rotate_interleaved(angles, count, data, dtype, begin + 2 * first);
    else rotate_halves(angles, count, data, dtype, begin + first, half);
  }
}

}  // namespace

void rotate_row(const Rotary& rotary, int64_t position, void* data, DType dtype, int64_t begin) {
  dtype == DType::f64 ? rotate<double>(rotary, position, data, dtype, begin)
                      : rotate<float>(rotary, position, data, dtype, begin);
}

}  // namespace cuflash::cpu
