// The kernels over GNU vectors, for any width. Included once per instruction set, inside a namespace of that name: the
// linker must never merge the same inline function compiled for two processors. For the same reason, only standard
// headers without code, such as <cstdint>, are used here.
//
// Define before the include: kVectorBytes; kFloatRows, kFloatVectors, kDoubleRows and kDoubleVectors, the block of C
// that is held in registers, rows x vectors; kDepthAtOnce, how often the loop over the depth of a product is unrolled;
// kExpAtOnce, how many vectors of exponentials are computed together; kTileQ, as in Kernels.

template <class T>
struct Shape;
template <>
struct Shape<float> {
  static constexpr int kRows = kFloatRows, kVectors = kFloatVectors;
};
template <>
struct Shape<double> {
  static constexpr int kRows = kDoubleRows, kVectors = kDoubleVectors;
};

template <class T>
struct V {
  typedef T Vec __attribute__((vector_size(kVectorBytes), may_alias));
  typedef T Unaligned __attribute__((vector_size(kVectorBytes), may_alias, aligned(alignof(T))));
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kRows = Shape<T>::kRows, kVectors = Shape<T>::kVectors;
  static constexpr int kLanes = kWidth * kVectors;
  static constexpr T kInfinity = static_cast<T>(__builtin_inf());
};
template <class T>
using Vec = typename V<T>::Vec;

template <class T>
inline Vec<T>& at(T* p) {
  return *reinterpret_cast<Vec<T>*>(p);
}
template <class T>
inline Vec<T> at(const T* p) {
  return *reinterpret_cast<const Vec<T>*>(p);
}

#include "cpu/isa/exponential.h"
#include "cpu/isa/row_kernels.h"

#include "cpu/isa/pack_kernels.h"

template <class T>
void multiply(int64_t m, int64_t depth, const T* left, int64_t left_stride, const T* right, T* c, Into into) {
  constexpr int kRows = V<T>::kRows, kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes;
  for (; m > 0; m -= kRows, left += left_stride, c += kRows * kLanes) {
    Vec<T> sum[kRows][kVectors] = {};
    const T* a = left;
    const T* b = right;
#pragma GCC unroll kDepthAtOnce
    for (int64_t k = 0; k < depth; ++k, a += kRows, b += kLanes) {
#if defined(__aarch64__)
      Vec<T> part[kRows / kWidth];  // multiplying by a lane is as fast as by a register, and needs fewer loads
      for (int n = 0; n < kRows / kWidth; ++n) part[n] = at(a + n * kWidth);
#endif
      for (int v = 0; v < kVectors; ++v) {
        const Vec<T> column = at(b + v * kWidth);
        for (int r = 0; r < kRows; ++r) {
#if defined(__aarch64__)
          sum[r][v] += part[r / kWidth][r % kWidth] * column;
#else
          sum[r][v] += a[r] * column;
#endif
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        Vec<T>& out = at(c + r * kLanes + v * kWidth);
        out = into == Into::add ? out + sum[r][v] : sum[r][v];
      }
    }
  }
}

// A few rows of one vector column at a time: the exponential needs its registers for constants.
template <class T>
void softmax(int64_t keys, T* s, T scale, T* m, T* l, T* o, int64_t dim) {
  constexpr int kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes, kAtOnce = kExpAtOnce;
  Vec<T> top[kVectors], top_of_odd[kVectors];  // two chains, because a maximum takes several cycles
  for (int v = 0; v < kVectors; ++v) top[v] = top_of_odd[v] = at(m + v * kWidth);
  for (int64_t k = 0; k < keys; k += 2) {
    const T* even = s + k * kLanes;
    const T* odd = k + 1 < keys ? even + kLanes : even;
    for (int v = 0; v < kVectors; ++v) top[v] = larger(at(even + v * kWidth), top[v]);  // l carries a NaN
    for (int v = 0; v < kVectors; ++v) top_of_odd[v] = larger(at(odd + v * kWidth), top_of_odd[v]);
  }
  for (int v = 0; v < kVectors; ++v) top[v] = larger(top[v], top_of_odd[v]);
  for (int v = 0; v < kVectors; ++v) {
    // If no key has been seen yet, subtract 0, because subtracting -inf would give NaN.
    const Vec<T> reference = top[v] == -V<T>::kInfinity ? Vec<T>{} : top[v];
    Vec<T> sum = {};
    T* column = s + v * kWidth;
    const auto take = [&]<int kCount>(Count<kCount>) {
      Vec<T> p[kCount];
      for (int n = 0; n < kCount; ++n) p[n] = at(column + n * kLanes) - reference;
      exp_each(p, scale);
      for (int n = 0; n < kCount; ++n) at(column + n * kLanes) = p[n];
      for (int n = 0; n < kCount; ++n) sum += p[n];
      column += kCount * kLanes;
    };
    int64_t k = 0;
    for (; k + kAtOnce <= keys; k += kAtOnce) take(Count<kAtOnce>());
    for (; k < keys; ++k) take(Count<1>());
    const Vec<T> old = at(m + v * kWidth);
    at(m + v * kWidth) = top[v];
    if (!differ(top[v], old)) {
      at(l + v * kWidth) += sum;
      continue;
    }
    Vec<T> shrink[1] = {old - reference};
    exp_each(shrink, scale);
    at(l + v * kWidth) = at(l + v * kWidth) * shrink[0] + sum;
    for (int64_t d = 0; d < dim; ++d) at(o + d * kLanes + v * kWidth) *= shrink[0];
  }
}

template <class T, bool kHidden>
void differentiate_pairs(int64_t keys, T* s, T scale, T* dp, const T* lse, const T* delta, const T* keep,
                         const T* cap_slope) {
  constexpr int kWidth = V<T>::kWidth, kLanes = V<T>::kLanes, kAtOnce = kExpAtOnce;
  for (int64_t lane = 0; lane < kLanes; lane += kWidth) {
    const Vec<T> row_lse = at(lse + lane), row_delta = at(delta + lane);
    const auto take = [&]<int kCount>(int64_t first, Count<kCount>) {
      Vec<T> p[kCount];
      for (int n = 0; n < kCount; ++n) {
        // Round the product as the forward pass did for lse, so that the largest score of a row cancels however large
        // it is.
        const Vec<T> score = rounded(at(s + first + n * kLanes) * scale);
        p[n] = at_most(score - row_lse, T{0});  // no weight exceeds 1, however coarsely huge scores are rounded
      }
      exp_each(p, T{1});
      for (int n = 0; n < kCount; ++n) {
        const int64_t at_n = first + n * kLanes;
        Vec<T> probability = p[n], gradient = at(dp + at_n);
        if (keep) gradient *= at(keep + at_n);
        gradient = probability * (gradient - row_delta);
        if (cap_slope) gradient *= at(cap_slope + at_n);
        if (keep) probability *= at(keep + at_n);
        // A hidden pair has neither weight nor gradient, even if its key or query brought NaN here.
        const Vec<T> score = at(s + at_n);
        at(dp + at_n) = kHidden ? zero_if_hidden(gradient, score) : gradient;
        at(s + at_n) = kHidden ? zero_if_hidden(probability, score) : probability;
      }
    };
    int64_t k = 0;
    for (; k + kAtOnce <= keys; k += kAtOnce) take(lane + k * kLanes, Count<kAtOnce>());
    for (; k < keys; ++k) take(lane + k * kLanes, Count<1>());
  }
}

template <class T>
void differentiate(int64_t keys, bool some_hidden, T* s, T scale, T* dp, const T* lse, const T* delta, const T* keep,
                   const T* cap_slope) {
  (some_hidden ? differentiate_pairs<T, true> : differentiate_pairs<T, false>)(keys, s, scale, dp, lse, delta, keep,
                                                                               cap_slope);
}

template <class T>
void to_left(int64_t keys, const T* w, T* left, int64_t capacity, int64_t first) {
  constexpr int kRows = V<T>::kRows, kLanes = V<T>::kLanes;
  for (int64_t k = 0; k < keys; k += kRows)
    transpose<kRows>(kLanes, w + k * kLanes, kLanes, left + k * capacity + first * kRows, kRows);
}

#include "cpu/isa/unpack_kernels.h"

template <class T>
void hide(int64_t keys, T* s, const int32_t* begin, const int32_t* end) {
  constexpr int kLanes = V<T>::kLanes;
  for (int32_t k = 0; k < static_cast<int32_t>(keys); ++k, s += kLanes)
    for (int n = 0; n < kLanes; ++n) s[n] = ((k >= begin[n]) & (k < end[n])) ? s[n] : -V<T>::kInfinity;
}

#include "cpu/isa/option_kernels.h"

// The entries of a table other than products and packing, which are the same for operands of every type.
template <class T, class E = T>
constexpr Kernels<T, E> table_of_scores() {
  return {.rows = 0,
          .lanes = V<T>::kLanes,
          .step = 1,
          .tile_q = kTileQ,
          .begin_products = nullptr,
          .end_products = nullptr,
          .multiply = nullptr,
          .pack = nullptr,
          .to_right = nullptr,
          .to_left = nullptr,
          .softmax = softmax<T>,
          .softmax_to_right = nullptr,
          .differentiate = differentiate<T>,
          .unpack = unpack<T>,
          .unpack_rows = unpack_rows,
          .hide = hide<T>,
          .multiply_scores = multiply_scores<T>,
          .softcap = softcap<T>,
          .alibi = alibi<T>,
          .add_rows = add_rows<T>,
          .mask = mask<T>,
          .draw_dropout = draw_dropout<T>,
          .drop = drop<T>,
          .add_to_rows = add_to_rows<T>,
          .load = load,
          .store = store};
}

template <class T>
constexpr Kernels<T> table() {
  Kernels<T> t = table_of_scores<T>();
  t.rows = V<T>::kRows;
  t.multiply = multiply<T>, t.pack = pack<T>, t.to_left = to_left<T>;
  return t;
}
