// The kernels over GNU vectors, for any width. Included once per instruction set, inside a namespace of that name: the
// linker must never merge the same inline function compiled for two processors. For the same reason, only standard
// headers without code, such as <cstdint>, are used here.
//
// Define before the include: kVectorBytes; kFloatRows, kFloatVectors, kDoubleRows and kDoubleVectors, the block of C
// that is held in registers, rows x vectors; kDepthAtOnce, how often the loop over the depth of a product is unrolled;
// kExpAtOnce, how many vectors of exponentials are computed together; kTileQ and kFetchesAhead, as in Kernels.

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

// Fetches cache lines of rows in equal shares, one for each of several steps.
class Fetching {
 public:
  Fetching(const Ahead& ahead, int64_t steps)
      : rows_(ahead.rows),
        end_(ahead.rows + ahead.count),
        share_(kFetchesAhead && ahead.count ? (ahead.lines + steps - 1) / steps : 0) {}

  void step() {
    if (!kFetchesAhead) return;
    for (int64_t n = 0; n < share_ && rows_ != end_; ++n) {
      __builtin_prefetch(rows_->first + row_ * rows_->stride + at_, 0, 2);
      at_ += Ahead::kLine;
      if (at_ < rows_->bytes) continue;
      at_ = 0, ++row_;
      if (row_ == rows_->count) row_ = 0, ++rows_;
    }
  }

 private:
  const RowsAhead *rows_, *end_;
  int64_t share_, row_ = 0, at_ = 0;
};

// put(c, v, sum) stores a vector of sums; v: which vector of the lanes.
template <class T, class Put>
inline void multiply_panels(int64_t m, int64_t depth, const T* left, int64_t left_stride, const T* right, T* c,
                            const Ahead& ahead, Put put) {
  constexpr int kRows = V<T>::kRows, kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes;
  Fetching fetching(ahead, (m + kRows - 1) / kRows);
  for (; m > 0; m -= kRows, left += left_stride, c += kRows * kLanes) {
    fetching.step();
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
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kVectors; ++v) put(at(c + r * kLanes + v * kWidth), v, sum[r][v]);
  }
}

template <class T>
void multiply(int64_t m, int64_t depth, const T* left, int64_t left_stride, const T* right, T* c, Into into,
              const Ahead& ahead) {
  multiply_panels(m, depth, left, left_stride, right, c, ahead,
                  [&](Vec<T>& out, int, Vec<T> sum) { out = into == Into::add ? out + sum : sum; });
}

template <class T>
void rescale_and_multiply(int64_t m, int64_t depth, const T* left, int64_t left_stride, const T* right, T* c,
                          const T* factor) {
  multiply_panels(m, depth, left, left_stride, right, c, {},
                  [&](Vec<T>& out, int v, Vec<T> sum) { out = out * at(factor + v * V<T>::kWidth) + sum; });
}

// A few rows of one vector column at a time: the exponential needs its registers for constants.
template <class T>
bool softmax(int64_t keys, T* s, T scale, T* m, T* l, T* shrink) {
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
  bool grew = false;
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
    Vec<T> factor[1] = {Vec<T>{} + T{1}};
    if (differ(top[v], old)) {
      grew = true;
      factor[0] = old - reference;
      exp_each(factor, scale);
    }
    at(l + v * kWidth) = at(l + v * kWidth) * factor[0] + sum;
    at(shrink + v * kWidth) = factor[0];
  }
  return grew;
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
          .fetches_ahead = kFetchesAhead,
          .begin_products = nullptr,
          .end_products = nullptr,
          .multiply = nullptr,
          .rescale_and_multiply = nullptr,
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
          .add = add<T>,
          .load = load,
          .store = store};
}

#if defined(__x86_64__)
// Sums that are not normal numbers count as 0. They arise where all weights of some keys are tiny, as ALiBi makes them,
// and each of them would cost the processor more than a hundred cycles.
inline uint32_t flush_to_zero() {
  constexpr uint32_t kFlushToZero = 0x8000;
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZero);
  return before;
}
inline void restore_control(uint32_t before) { _mm_setcsr(before); }
#endif

template <class T>
constexpr Kernels<T> table() {
  Kernels<T> t = table_of_scores<T>();
#if defined(__x86_64__)
  if (sizeof(T) == sizeof(float)) t.begin_products = flush_to_zero, t.end_products = restore_control;
#endif
  t.rows = V<T>::kRows;
  t.multiply = multiply<T>, t.rescale_and_multiply = rescale_and_multiply<T>;
  t.pack = pack<T>, t.to_left = to_left<T>;
  return t;
}
