// The kernels of the decode path over GNU vectors. Included once per instruction set after vector_kernels.h, in the
// same namespace and under the same rules.
//
// Define before the include: kDecodeKeys, the keys whose scores with up to four rows are held in registers, and
// kDecodeVectors, the vectors of a row of O that are held for four rows.

struct StoredBf16 {
  uint16_t bits;
};
struct StoredF16 {
  uint16_t bits;
};

inline Vec<float> load(const float* p) { return *reinterpret_cast<const V<float>::Unaligned*>(p); }
inline Vec<double> load(const double* p) { return *reinterpret_cast<const V<double>::Unaligned*>(p); }

typedef uint16_t Narrow __attribute__((vector_size(kVectorBytes / 2), may_alias, aligned(2)));

inline Vec<float> load(const StoredBf16* p) {
#if defined(__aarch64__)
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
#else
  typedef uint32_t Wide __attribute__((vector_size(kVectorBytes), may_alias));
  return (Vec<float>)(__builtin_convertvector(*reinterpret_cast<const Narrow*>(p), Wide) << 16);
#endif
}

inline Vec<float> load(const StoredF16* p) {
#if defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
#elif defined(__AVX512F__)
  return (Vec<float>)_mm512_cvtph_ps((__m256i) * reinterpret_cast<const Narrow*>(p));
#elif defined(__F16C__)
  return (Vec<float>)_mm256_cvtph_ps((__m128i) * reinterpret_cast<const Narrow*>(p));
#else
  Vec<float> x;
  load_row(p, DType::f16, 0, V<float>::kWidth, reinterpret_cast<float*>(&x));
  return x;
#endif
}

// The first `count` elements, followed by zeros; reads nothing beyond the end of a row.
template <class T, class Stored>
inline Vec<T> load_part(const Stored* p, int64_t count) {
  Stored padded[V<T>::kWidth] = {};
  for (int64_t n = 0; n < count; ++n) padded[n] = p[n];
  return load(padded);
}

#include "cpu/isa/decode_rows.h"

typedef float Quad __attribute__((vector_size(16), may_alias));

// Sums of every fourth lane.
inline Quad fold(Vec<float> x) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7) +
         (__builtin_shufflevector(x, x, 8, 9, 10, 11) + __builtin_shufflevector(x, x, 12, 13, 14, 15));
#elif defined(__AVX2__)
  return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
  return x;
#endif
}
// [a0 + a2, b0 + b2, a1 + a3, b1 + b3]
inline Quad fold(Quad a, Quad b) {
  return __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

inline float sum_of(Vec<float> x) {
  const Quad sums = fold(x);
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}
inline double sum_of(Vec<double> x) {
  double sum = 0;
  for (int n = 0; n < V<double>::kWidth; ++n) sum += x[n];
  return sum;
}

// s [key] = the horizontal sum of x [key], times scale.
template <int kKeys, class T>
inline void store_sums(const Vec<T> (&x)[kKeys], T scale, T* s) {
  if constexpr (sizeof(T) == 4 && kKeys == 4) {
    const Quad low = fold(fold(x[0]), fold(x[1])), high = fold(fold(x[2]), fold(x[3]));
    typedef float Unaligned __attribute__((vector_size(16), may_alias, aligned(4)));
    *reinterpret_cast<Unaligned*>(s) =
        scale * (__builtin_shufflevector(low, high, 0, 1, 4, 5) + __builtin_shufflevector(low, high, 2, 3, 6, 7));
  } else {
    for (int k = 0; k < kKeys; ++k) s[k] = sum_of(x[k]) * scale;
  }
}

// s += scale q . k over the last elements of a row, fewer than a vector.
template <int kRows, int kKeys, class T, class Stored>
void add_tail_dots(const Stored* k, int64_t stride, int64_t count, const T* q, int64_t q_stride, T scale, T* s,
                   int64_t s_stride) {
  for (int n = 0; n < kKeys; ++n) {
    const Vec<T> key = load_part<T>(k + n * stride, count);
    for (int r = 0; r < kRows; ++r) s[r * s_stride + n] += sum_of(at(q + r * q_stride) * key) * scale;
  }
}

// This is not inlined, so that each instance has all registers.
template <int kRows, int kKeys, class T, class Stored>
__attribute__((noinline)) void dots_of(const Stored* k, int64_t stride, int64_t dim, Prefetch prefetch, const T* q,
                                       int64_t q_stride, T scale, T* s, int64_t s_stride) {
  constexpr int64_t kWidth = V<T>::kWidth, kLine = kCacheLine / static_cast<int64_t>(sizeof(Stored));
  Vec<T> sum[kRows][kKeys] = {};
  const int64_t whole = dim / kWidth * kWidth;
  for (int64_t d = 0; d < whole; d += kWidth) {
    if (d % kLine == 0) {
      for (int n = 0; n < kKeys; ++n) {
        prefetch_l2(k + d, n, prefetch);
        prefetch_l1<kRows>(k + n * stride + d, prefetch);
      }
    }
    Vec<T> key[kKeys];
    for (int n = 0; n < kKeys; ++n) key[n] = load(k + n * stride + d);
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> query = at(q + r * q_stride + d);
      for (int n = 0; n < kKeys; ++n) sum[r][n] += query * key[n];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store_sums<kKeys, T>(sum[r], scale, s + r * s_stride);
  if (whole < dim) add_tail_dots<kRows, kKeys>(k + whole, stride, dim - whole, q + whole, q_stride, scale, s, s_stride);
}

template <int kKeys, class T, class Stored>
inline void dots_keys(const KeyRows& k, int64_t head, int64_t key, const RowBlock<const T>& q, T scale,
                      const RowBlock<T>& s, Prefetch prefetch) {
  const auto dots = [&]<int kRows>(int64_t row) {
    dots_of<kRows, kKeys>(key_row<Stored>(k, head, key), k.row_stride, k.dim, prefetch, row_of(q, head, row), q.stride,
                          scale, row_of(s, head, row) + key, s.stride);
  };
  int64_t row = 0;
  for (; row + 4 <= q.rows; row += 4) dots.template operator()<4>(row);
  if (q.rows - row == 3) dots.template operator()<3>(row);
  if (q.rows - row == 2) dots.template operator()<2>(row);
  if (q.rows - row == 1) dots.template operator()<1>(row);
}

// A few keys of all heads at a time: if the heads of a key are adjacent, that is memory order.
template <class T, class Stored>
void dots_stored(const KeyRows& k, const RowBlock<const T>& q, T scale, const RowBlock<T>& s) {
  const Prefetch prefetch = prefetch_of(k, sizeof(Stored), kDecodeKeys, kDecodeKeys);
  int64_t key = 0;
  for (; key + kDecodeKeys <= k.keys; key += kDecodeKeys)
    for (int64_t head = 0; head < k.heads; ++head)
      dots_keys<kDecodeKeys, T, Stored>(k, head, key, q, scale, s, prefetch.of_head(head));
  for (; key < k.keys; ++key)
    for (int64_t head = 0; head < k.heads; ++head) dots_keys<1, T, Stored>(k, head, key, q, scale, s, prefetch);
}

// Loads the weights of kGroup keys into one register if multiplying by a lane is as fast as by a whole register;
// otherwise broadcasts them one by one.
#if defined(__aarch64__)
template <class T>
constexpr int kGroup = V<T>::kWidth;
#else
template <class T>
constexpr int kGroup = 1;
#endif

// sum += p v for kKeys keys and kVectors vectors of each.
template <int kRows, int kVectors, int kKeys, class T, class Stored>
inline void add_group(const Stored* v, int64_t stride, Prefetch prefetch, const T* p, int64_t p_stride,
                      Vec<T> (&sum)[kRows][kVectors]) {
#if defined(__aarch64__)
  Vec<T> weight[kRows];
  for (int r = 0; r < kRows; ++r) weight[r] = load(p + r * p_stride);
#endif
#pragma GCC unroll 4
  for (int k = 0; k < kKeys; ++k) {
    const Stored* row = v + k * stride;
#if defined(__aarch64__)
    // Without this barrier GCC loads the values of the next keys here and moves accumulators between registers to make
    // room.
    if constexpr (kRows * kVectors >= 16) asm volatile("" ::: "memory");
#endif
    prefetch_l1<kRows>(row, prefetch);
    Vec<T> value[kVectors];
    for (int n = 0; n < kVectors; ++n) value[n] = load(row + n * V<T>::kWidth);
    for (int n = 0; n < kVectors; ++n) {
      for (int r = 0; r < kRows; ++r) {
#if defined(__aarch64__)
        sum[r][n] += weight[r][k] * value[n];
#else
        sum[r][n] += p[r * p_stride + k] * value[n];
#endif
      }
    }
  }
}

template <int kRows, int kVectors, class T, class Stored>
inline void add_strip(const Stored* v, int64_t stride, int64_t keys, Prefetch prefetch, const T* p, int64_t p_stride,
                      T* o, int64_t o_stride) {
  constexpr int kWidth = V<T>::kWidth;
  Vec<T> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kVectors; ++n) sum[r][n] = at(o + r * o_stride + n * kWidth);
  int64_t k = 0;
  for (; k + kGroup<T> <= keys; k += kGroup<T>)
    add_group<kRows, kVectors, kGroup<T>>(v + k * stride, stride, prefetch, p + k, p_stride, sum);
  for (; k < keys; ++k) add_group<kRows, kVectors, 1>(v + k * stride, stride, prefetch, p + k, p_stride, sum);
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kVectors; ++n) at(o + r * o_stride + n * kWidth) = sum[r][n];
}

// o += p v for the last elements of a row, fewer than a vector.
template <int kRows, class T, class Stored>
inline void add_tail(const Stored* v, int64_t stride, int64_t keys, int64_t count, const T* p, int64_t p_stride, T* o,
                     int64_t o_stride) {
  for (int64_t k = 0; k < keys; ++k) {
    const Vec<T> value = load_part<T>(v + k * stride, count);
    for (int r = 0; r < kRows; ++r) at(o + r * o_stride) += p[r * p_stride + k] * value;
  }
}

// Keys whose values stay in L1 while the strips of O pass over them.
constexpr int64_t kAddKeys = 16;

// While it computes a strip of O, prefetches a few of the later rows, whole and in memory order.
template <int kRows, class T, class Stored>
__attribute__((noinline)) void add_rows(const Stored* v, int64_t stride, int64_t keys, int64_t dim, Prefetch prefetch,
                                        const T* p, int64_t p_stride, T* o, int64_t o_stride) {
  constexpr int64_t kWidth = V<T>::kWidth, kStrip = kDecodeVectors * kWidth;
  constexpr int64_t kLine = kCacheLine / static_cast<int64_t>(sizeof(Stored));
  const int64_t few = (keys * kStrip + dim - 1) / dim;
  int64_t d = 0;
  for (int64_t row = 0; d + kStrip <= dim; d += kStrip) {
    for (int64_t n = 0; n < few; ++n, ++row)
      for (int64_t line = 0; line < dim; line += kLine) prefetch_l2(v + line, row, prefetch);
    add_strip<kRows, kDecodeVectors>(v + d, stride, keys, prefetch, p, p_stride, o + d, o_stride);
  }
  for (; d + kWidth <= dim; d += kWidth)
    add_strip<kRows, 1>(v + d, stride, keys, prefetch, p, p_stride, o + d, o_stride);
  if (d < dim) add_tail<kRows>(v + d, stride, keys, dim - d, p, p_stride, o + d, o_stride);
}

template <class T, class Stored>
void add_stored(const KeyRows& v, const RowBlock<const T>& p, const RowBlock<T>& o) {
  const Prefetch prefetch = prefetch_of(v, sizeof(Stored), kAddKeys, kAddKeys);
  for (int64_t key = 0; key < v.keys; key += kAddKeys) {
    const int64_t keys = v.keys - key < kAddKeys ? v.keys - key : kAddKeys;
    for (int64_t head = 0; head < v.heads; ++head) {
      const auto add = [&]<int kRows>(int64_t row) {
        add_rows<kRows>(key_row<Stored>(v, head, key), v.row_stride, keys, v.dim, prefetch.of_head(head),
                        row_of(p, head, row) + key, p.stride, row_of(o, head, row), o.stride);
      };
      int64_t row = 0;
      for (; row + 4 <= p.rows; row += 4) add.template operator()<4>(row);
      if (p.rows - row == 3) add.template operator()<3>(row);
      if (p.rows - row == 2) add.template operator()<2>(row);
      if (p.rows - row == 1) add.template operator()<1>(row);
    }
  }
}

inline void decode_dots(const KeyRows& k, RowBlock<const float> q, float scale, RowBlock<float> s) {
  if (k.dtype == DType::f32) dots_stored<float, float>(k, q, scale, s);
  else if (k.dtype == DType::bf16) dots_stored<float, StoredBf16>(k, q, scale, s);
  else dots_stored<float, StoredF16>(k, q, scale, s);
}
inline void decode_dots(const KeyRows& k, RowBlock<const double> q, double scale, RowBlock<double> s) {
  dots_stored<double, double>(k, q, scale, s);
}

inline void decode_add(const KeyRows& v, RowBlock<const float> p, RowBlock<float> o) {
  if (v.dtype == DType::f32) add_stored<float, float>(v, p, o);
  else if (v.dtype == DType::bf16) add_stored<float, StoredBf16>(v, p, o);
  else add_stored<float, StoredF16>(v, p, o);
}
inline void decode_add(const KeyRows& v, RowBlock<const double> p, RowBlock<double> o) {
  add_stored<double, double>(v, p, o);
}

template <class T, class Stored>
void widen_stored(const Stored* from, int64_t dim, T* to) {
  constexpr int64_t kWidth = V<T>::kWidth;
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) at(to + d) = load(from + d);
  if (d < dim) at(to + d) = load_part<T>(from + d, dim - d);
}
inline void decode_widen(const void* data, DType dtype, int64_t begin, int64_t dim, float* to) {
  if (dtype == DType::f32) widen_stored(static_cast<const float*>(data) + begin, dim, to);
  else if (dtype == DType::bf16) widen_stored(static_cast<const StoredBf16*>(data) + begin, dim, to);
  else widen_stored(static_cast<const StoredF16*>(data) + begin, dim, to);
}
inline void decode_widen(const void* data, DType, int64_t begin, int64_t dim, double* to) {
  widen_stored(static_cast<const double*>(data) + begin, dim, to);
}

// Four accumulators, because a single maximum would be a serial dependency chain. A NaN may get lost here, but the sum
// of the weights carries it.
template <class T>
inline T largest_of(int64_t keys, const T* s) {
  constexpr int64_t kWidth = V<T>::kWidth, kChains = 4;
  Vec<T> tops[kChains];
  for (int n = 0; n < kChains; ++n) tops[n] = at(s);
  int64_t k = 0;
  for (; k + kChains * kWidth <= keys; k += kChains * kWidth)
    for (int n = 0; n < kChains; ++n) tops[n] = larger(at(s + k + n * kWidth), tops[n]);
  for (; k < keys; k += kWidth) tops[0] = larger(at(s + k), tops[0]);
  tops[0] = larger(larger(tops[0], tops[1]), larger(tops[2], tops[3]));
  T top = -V<T>::kInfinity;
  for (int n = 0; n < kWidth; ++n) top = tops[0][n] > top ? tops[0][n] : top;
  return top;
}

template <class T>
void softmax_row(int64_t keys, T* s, T* m, T* l, T* o, int64_t dim) {
  constexpr int kWidth = V<T>::kWidth;
  for (int64_t k = keys; k % kWidth != 0; ++k) s[k] = -V<T>::kInfinity;
  const T largest = largest_of(keys, s), top = largest > *m ? largest : *m;
  // If no key has been seen yet, subtract 0, because subtracting -inf would give NaN.
  const T reference = top == -V<T>::kInfinity ? T{0} : top;
  Vec<T> sums = {};
  int64_t k = 0;
  const auto take = [&]<int kCount>(Count<kCount>) {
    Vec<T> p[kCount];
    for (int n = 0; n < kCount; ++n) p[n] = at(s + k + n * kWidth) - reference;
    exp_each(p, T{1});
    for (int n = 0; n < kCount; ++n) sums += at(s + k + n * kWidth) = p[n];
    k += kCount * kWidth;
  };
  while (k + kExpAtOnce * kWidth <= keys) take(Count<kExpAtOnce>());
  while (k < keys) take(Count<1>());
  const T sum = sum_of(sums);
  if (top == *m) {
    *l += sum;
    return;
  }
  Vec<T> growth[1] = {Vec<T>{} + (*m - reference)};
  exp_each(growth, T{1});
  const T shrink = growth[0][0];
  *m = top;
  *l = *l * shrink + sum;
  for (int64_t d = 0; d < dim; d += kWidth) at(o + d) *= shrink;
}

template <class T>
void softcap_row(int64_t keys, T* s, T cap) {
  for (int64_t k = 0; k < keys; k += V<T>::kWidth) at(s + k) = cap * tanh_of(at(s + k) / cap);
}

template <class T>
constexpr DecodeKernels<T> decode_table() {
  return {decode_widen, nullptr, decode_dots, decode_add, softmax_row<T>, nullptr, softcap_row<T>, is_finite<T>};
}
