// The kernels over GNU vectors, for any width. Included once per instruction set, inside a namespace of that name: the
// same inline function compiled for two processors must never meet at link time. For that reason, too, nothing of the
// standard library is used here but <cstdint>-like headers without code.
//
// Before the include: kVectorBytes; kFloatRows, kFloatVectors, kDoubleRows, kDoubleVectors, the block of C that is
// held in registers, rows x vectors; kExpAtOnce, how many vectors of exponentials are computed together.

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

template <class T>
void multiply(int64_t m, int64_t depth, const T* left, int64_t left_stride, const T* right, T* c, Into into) {
  constexpr int kRows = V<T>::kRows, kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes;
  for (; m > 0; m -= kRows, left += left_stride, c += kRows * kLanes) {
    Vec<T> sum[kRows][kVectors] = {};
    const T* a = left;
    const T* b = right;
    for (int64_t k = 0; k < depth; ++k, a += kRows, b += kLanes) {
#if defined(__aarch64__)
      Vec<T> part[kRows / kWidth];  // lanes of a register multiply as fast as whole ones: fewer loads than broadcasts
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

inline float widen_bf16(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }

#if defined(__aarch64__)
inline void widen_f16(const uint16_t* from, int64_t count, float* to) {
  const auto* half = reinterpret_cast<const __fp16*>(from);
  for (int64_t n = 0; n < count; ++n) to[n] = half[n];
}
#elif defined(__F16C__)
inline void widen_f16(const uint16_t* from, int64_t count, float* to) {
  int64_t n = 0;
  for (; n + 8 <= count; n += 8)
    _mm256_storeu_ps(to + n, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + n))));
  for (; n < count; ++n) to[n] = _cvtsh_ss(from[n]);
}
#else
inline void widen_f16(const uint16_t* from, int64_t count, float* to) { load_row(from, DType::f16, 0, count, to); }
#endif

// One row of the caller's tensor in T. Sources are the problem's own type or f32.
inline void widen_row(const Source& source, int64_t row, float* to) {
  const int64_t begin = source.offset + row * source.row_stride;
  if (source.dtype == DType::f32) {
    __builtin_memcpy(to, static_cast<const float*>(source.data) + begin,
                     static_cast<size_t>(source.dim) * sizeof(float));
  } else if (source.dtype == DType::bf16) {
    const uint16_t* from = static_cast<const uint16_t*>(source.data) + begin;
    for (int64_t n = 0; n < source.dim; ++n) to[n] = widen_bf16(from[n]);
  } else {
    widen_f16(static_cast<const uint16_t*>(source.data) + begin, source.dim, to);
  }
}
inline void widen_row(const Source& source, int64_t row, double* to) {
  load_row(source.data, source.dtype, source.offset + row * source.row_stride, source.dim, to);
}

#if defined(__aarch64__)
inline void narrow_to_f16(const float* from, int64_t count, uint16_t* to) {
  auto* half = reinterpret_cast<__fp16*>(to);
  for (int64_t n = 0; n < count; ++n) half[n] = static_cast<__fp16>(from[n]);
}
#elif defined(__F16C__)
inline void narrow_to_f16(const float* from, int64_t count, uint16_t* to) {
  int64_t n = 0;
  for (; n + 8 <= count; n += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + n), _mm256_cvtps_ph(_mm256_loadu_ps(from + n), 0));
  for (; n < count; ++n) to[n] = _cvtss_sh(from[n], 0);
}
#else
inline void narrow_to_f16(const float* from, int64_t count, uint16_t* to) { store_row(to, DType::f16, 0, count, from); }
#endif

inline uint16_t narrow_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded_bits = bits + 0x7fff + ((bits >> 16) & 1);  // ties to even; the carry rounds up to Inf
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>((is_nan ? bits | 0x400000 : rounded_bits) >> 16);
}

// As load_row and store_row of dtype.h.
inline void load(const void* data, DType type, int64_t begin, int64_t count, float* row) {
  if (type == DType::f32 || type == DType::bf16 || type == DType::f16)
    widen_row({data, type, begin, 0, 1, count}, 0, row);
  else load_row(data, type, begin, count, row);
}
inline void store(void* data, DType type, int64_t begin, int64_t count, const float* row) {
  if (type == DType::f32)
    __builtin_memcpy(static_cast<float*>(data) + begin, row, static_cast<size_t>(count) * sizeof(float));
  else if (type == DType::f16) narrow_to_f16(row, count, static_cast<uint16_t*>(data) + begin);
  else if (type == DType::bf16)
    for (int64_t n = 0; n < count; ++n) static_cast<uint16_t*>(data)[begin + n] = narrow_to_bf16(row[n]);
  else store_row(data, type, begin, count, row);
}
inline void load(const void* data, DType type, int64_t begin, int64_t count, double* row) {
  load_row(data, type, begin, count, row);
}
inline void store(void* data, DType type, int64_t begin, int64_t count, const double* row) {
  store_row(data, type, begin, count, row);
}

// out [column][row] = in [row][column], times factor [column] where kScaled.
template <int kRows, bool kScaled = false>
inline void transpose(int64_t columns, const float* in, int64_t in_stride, float* out, int64_t out_stride,
                      const float* factor = nullptr) {
  typedef float Quad __attribute__((vector_size(16), may_alias, aligned(4)));
  const auto load_quad = [&](const float* from, int64_t column) {
    const Quad x = *reinterpret_cast<const Quad*>(from + column);
    return kScaled ? x * *reinterpret_cast<const Quad*>(factor + column) : x;
  };
  const auto move = [&](int r, int64_t c) {
    out[c * out_stride + r] = in[r * in_stride + c] * (kScaled ? factor[c] : 1.0f);
  };
  const int64_t whole = columns / 4 * 4;
  for (int r = 0; r + 4 <= kRows; r += 4) {
    const float* rows = in + r * in_stride;
    for (int64_t c = 0; c < whole; c += 4) {
      float* to = out + c * out_stride + r;
      const Quad a = load_quad(rows, c), b = load_quad(rows + in_stride, c);
      const Quad x = load_quad(rows + 2 * in_stride, c), y = load_quad(rows + 3 * in_stride, c);
      const Quad ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Quad xy_low = __builtin_shufflevector(x, y, 0, 4, 1, 5),
                 xy_high = __builtin_shufflevector(x, y, 2, 6, 3, 7);
      *reinterpret_cast<Quad*>(to) = __builtin_shufflevector(ab_low, xy_low, 0, 1, 4, 5);
      *reinterpret_cast<Quad*>(to + out_stride) = __builtin_shufflevector(ab_low, xy_low, 2, 3, 6, 7);
      *reinterpret_cast<Quad*>(to + 2 * out_stride) = __builtin_shufflevector(ab_high, xy_high, 0, 1, 4, 5);
      *reinterpret_cast<Quad*>(to + 3 * out_stride) = __builtin_shufflevector(ab_high, xy_high, 2, 3, 6, 7);
    }
    for (int64_t c = whole; c < columns; ++c)
      for (int n = r; n < r + 4; ++n) move(n, c);
  }
  for (int r = kRows / 4 * 4; r < kRows; ++r)
    for (int64_t c = 0; c < columns; ++c) move(r, c);
}
template <int kRows, bool kScaled = false>
inline void transpose(int64_t columns, const double* in, int64_t in_stride, double* out, int64_t out_stride,
                      const double* factor = nullptr) {
  for (int r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[c * out_stride + r] = in[r * in_stride + c] * (kScaled ? factor[c] : 1.0);
}

// Exponent bits: all set in Inf and NaN.
template <class T>
struct Exponent;
template <>
struct Exponent<float> {
  typedef int32_t Int;
  static constexpr Int kBits = 0x7f800000;
};
template <>
struct Exponent<double> {
  typedef int64_t Int;
  static constexpr Int kBits = 0x7ff0000000000000;
};

template <class T>
bool is_finite(const T* row, int64_t dim) {
  typedef typename Exponent<T>::Int Int;
  typedef Int IntVec __attribute__((vector_size(kVectorBytes), may_alias, aligned(alignof(T))));
  constexpr Int kExponent = Exponent<T>::kBits;
  constexpr int kWidth = V<T>::kWidth;
  IntVec bad = {};
  const int64_t whole = dim / kWidth * kWidth;
  for (int64_t d = 0; d < whole; d += kWidth)
    bad |= (*reinterpret_cast<const IntVec*>(row + d) & kExponent) == kExponent;
  Int any = 0;
  for (int n = 0; n < kWidth; ++n) any |= bad[n];
  for (int64_t d = whole; d < dim; ++d) any |= (__builtin_bit_cast(Int, row[d]) & kExponent) == kExponent;
  return any == 0;
}

template <class T>
struct RowGroup {
  const T* first;
  int64_t stride;
};

// Rows first .. first + kWidth - 1: where they lie, if nothing has to be done to them, otherwise staged.
// With `few`, rows beyond the last are not there at all, otherwise they are zero.
template <int kWidth, class T>
RowGroup<T> rows_at(const Source& source, int64_t first, T* staging, bool few = false) {
  constexpr DType kOwn = sizeof(T) == 8 ? DType::f64 : DType::f32;
  if (source.dtype == kOwn && (few || first + kWidth <= source.count))
    return {static_cast<const T*>(source.data) + source.offset + first * source.row_stride, source.row_stride};
  for (int64_t r = 0; r < kWidth && !(few && first + r >= source.count); ++r) {
    T* row = staging + r * source.dim;
    if (first + r < source.count) widen_row(source, first + r, row);
    else
      for (int64_t d = 0; d < source.dim; ++d) row[d] = 0;
  }
  return {staging, source.dim};
}

// to [dim][kWidth] = a few rows, and zeros.
template <int kWidth, class T>
void scatter_rows(const RowGroup<T>& rows, int64_t count, int64_t dim, T* to) {
  __builtin_memset(to, 0, static_cast<size_t>(dim * kWidth) * sizeof(T));
  for (int64_t r = 0; r < count; ++r)
    for (int64_t d = 0; d < dim; ++d) to[d * kWidth + r] = rows.first[r * rows.stride + d];
}

// to [dim / kWidth][capacity][kWidth] = up to kWidth rows, zero up to a whole panel and where a row is not finite. Panel by
// panel, so that lines of the cache are written whole.
template <int kWidth, class T>
void spread_rows(const RowGroup<T>& rows, int64_t count, const bool* finite, int64_t dim, int64_t capacity, T* to) {
  for (int64_t d = 0; d < dim; d += kWidth, to += capacity * kWidth) {
    for (int64_t r = 0; r < count; ++r) {
      const T* from = rows.first + r * rows.stride + d;
      T* line = to + r * kWidth;
      if (finite[r] && d + kWidth <= dim) __builtin_memcpy(line, from, kWidth * sizeof(T));
      else
        for (int n = 0; n < kWidth; ++n) line[n] = finite[r] && d + n < dim ? from[n] : 0;
    }
  }
}

template <int kWidth, class T>
int64_t pack_panels(const Source& source, T* by_dim, T* by_row, int64_t capacity, int32_t* bad, T* staging) {
  const int64_t dim = source.dim;
  int64_t bad_rows = 0;
  for (int64_t first = 0; first < source.count; first += kWidth) {
    const int64_t count = source.count - first < kWidth ? source.count - first : kWidth;
    const bool few = 4 * count <= kWidth;  // zeros are cheaper to write than to transpose
    const RowGroup<T> rows = rows_at<kWidth>(source, first, staging, few);
    if (by_dim && few) scatter_rows<kWidth>(rows, count, dim, by_dim + first * dim);
    else if (by_dim) transpose<kWidth>(dim, rows.first, rows.stride, by_dim + first * dim, kWidth);
    if (!by_row) continue;
    bool finite[kWidth] = {};
    for (int64_t r = 0; r < count; ++r) {
      finite[r] = is_finite(rows.first + r * rows.stride, dim);
      if (!finite[r]) bad[bad_rows++] = static_cast<int32_t>(first + r);
    }
    spread_rows<kWidth>(rows, count, finite, dim, capacity, by_row + first * kWidth);
  }
  return bad_rows;
}

template <class T>
int64_t pack(const Source& source, Side side, T* by_dim, T* by_row, int64_t capacity, int32_t* bad, T* staging) {
  return side == Side::left ? pack_panels<V<T>::kRows>(source, by_dim, by_row, capacity, bad, staging)
                            : pack_panels<V<T>::kLanes>(source, by_dim, by_row, capacity, bad, staging);
}

// A few rows of one vector column at a time: the exponential needs its registers for constants.
template <class T>
void softmax(int64_t keys, T* s, T scale, T* m, T* l, T* o, int64_t dim) {
  constexpr int kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes, kAtOnce = kExpAtOnce;
  Vec<T> top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = at(m + v * kWidth);
  for (int64_t k = 0; k < keys; ++k)
    for (int v = 0; v < kVectors; ++v)
      top[v] = larger(at(s + k * kLanes + v * kWidth), top[v]);  // the sum carries a NaN
  for (int v = 0; v < kVectors; ++v) {
    // Nothing seen yet: subtracting -inf would give NaN, 0 stands in for it.
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
    bool grew = false;
    for (int n = 0; n < kWidth; ++n) grew |= !(top[v][n] == old[n]);
    if (!grew) {
      at(l + v * kWidth) += sum;
      continue;
    }
    Vec<T> shrink[1] = {old - reference};
    exp_each(shrink, scale);
    at(l + v * kWidth) = at(l + v * kWidth) * shrink[0] + sum;
    for (int64_t d = 0; d < dim; ++d) at(o + d * kLanes + v * kWidth) *= shrink[0];
  }
}

template <class T>
void differentiate(int64_t keys, T* s, T scale, T* dp, const T* lse, const T* delta, const T* keep,
                   const T* cap_slope) {
  constexpr int kWidth = V<T>::kWidth, kLanes = V<T>::kLanes, kAtOnce = kExpAtOnce;
  for (int64_t lane = 0; lane < kLanes; lane += kWidth) {
    const Vec<T> row_lse = at(lse + lane), row_delta = at(delta + lane);
    const auto take = [&]<int kCount>(int64_t first, Count<kCount>) {
      Vec<T> p[kCount];
      for (int n = 0; n < kCount; ++n) {
        // The product is rounded as the forward pass rounded it into lse: a row's largest score, however large, cancels.
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
        // A hidden pair has no weight and no gradient, whatever NaN its key or its query brought here.
        const Vec<T> score = at(s + at_n);
        at(dp + at_n) = zero_if_hidden(gradient, score);
        at(s + at_n) = zero_if_hidden(probability, score);
      }
    };
    int64_t k = 0;
    for (; k + kAtOnce <= keys; k += kAtOnce) take(lane + k * kLanes, Count<kAtOnce>());
    for (; k < keys; ++k) take(lane + k * kLanes, Count<1>());
  }
}

template <class T>
void flip(int64_t keys, const T* w, T* left, int64_t capacity, int64_t first) {
  constexpr int kRows = V<T>::kRows, kLanes = V<T>::kLanes;
  for (int64_t k = 0; k < keys; k += kRows)
    transpose<kRows>(kLanes, w + k * kLanes, kLanes, left + k * capacity + first * kRows, kRows);
}

template <class T>
void unpack(int64_t dim, int64_t count, const T* panel, const T* factor, T* rows) {
  constexpr int kLanes = V<T>::kLanes;
  if (4 * count <= kLanes) {
    for (int64_t q = 0; q < count; ++q)
      for (int64_t d = 0; d < dim; ++d) rows[q * dim + d] = panel[d * kLanes + q] * factor[q];
    return;
  }
  int64_t d = 0;
  for (; d + 4 <= dim; d += 4) transpose<4, true>(kLanes, panel + d * kLanes, kLanes, rows + d, dim, factor);
  for (; d < dim; ++d) transpose<1, true>(kLanes, panel + d * kLanes, kLanes, rows + d, dim, factor);
}

template <class T>
void hide(int64_t keys, T* s, const int32_t* begin, const int32_t* end) {
  constexpr int kLanes = V<T>::kLanes;
  for (int32_t k = 0; k < static_cast<int32_t>(keys); ++k, s += kLanes)
    for (int n = 0; n < kLanes; ++n) s[n] = ((k >= begin[n]) & (k < end[n])) ? s[n] : -V<T>::kInfinity;
}

#include "cpu/isa/option_kernels.h"

// What a table has beside products and packing, the same for operands of every type.
template <class T, class E = T>
constexpr Kernels<T, E> table_of_scores() {
  return {.rows = 0,
          .lanes = V<T>::kLanes,
          .step = 1,
          .multiply = nullptr,
          .pack = nullptr,
          .to_right = nullptr,
          .flip = nullptr,
          .softmax = softmax<T>,
          .differentiate = differentiate<T>,
          .unpack = unpack<T>,
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
  t.multiply = multiply<T>, t.pack = pack<T>, t.flip = flip<T>;
  return t;
}
