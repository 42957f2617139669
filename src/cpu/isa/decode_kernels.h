// The kernels of the decode path over GNU vectors. Included once per instruction set behind vector_kernels.h, in the same
// namespace and under the same rules.
//
// Before the include: kDecodeKeys, the keys whose scores with up to four rows are held in registers, and kDecodeVectors,
// the vectors of a row of O that are held for four rows.

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

// The first `count` elements and zeros: nothing is read beyond the end of a row.
template <class T, class Stored>
inline Vec<T> load_part(const Stored* p, int64_t count) {
  Stored padded[V<T>::kWidth] = {};
  for (int64_t n = 0; n < count; ++n) padded[n] = p[n];
  return load(padded);
}

template <class T>
inline T* row_of(const RowBlock<T>& x, int64_t head, int64_t row) {
  return x.data + (head * x.rows + row) * x.stride;
}

// Far enough ahead to hide the latency of memory. Into the second level: on Neoverse-V1 prefetches into the first one
// take the place of what its own prefetcher does better.
constexpr int64_t kBytesAhead = 16384, kCacheLine = 64;

template <class Stored>
inline int64_t elements_ahead(const KeyRows& k, int64_t at_least) {
  const int64_t row_bytes = k.heads * k.dim * static_cast<int64_t>(sizeof(Stored));
  const int64_t rows = kBytesAhead / (row_bytes + 1) + 1;
  return (rows < at_least ? at_least : rows > 128 ? 128 : rows) * k.row_stride;
}

inline void prefetch(const void* p, int64_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(bytes)), 0,
                     2);
}

template <class T>
inline T sum_of(Vec<T> x) {
  T sum = 0;
  for (int n = 0; n < V<T>::kWidth; ++n) sum += x[n];
  return sum;
}

// s [key] = the sums of the vectors of x, times scale.
template <int kKeys, class T>
inline void store_sums(const Vec<T>* x, T scale, T* s) {
  for (int k = 0; k < kKeys; ++k) s[k] = sum_of<T>(x[k]) * scale;
}
#if defined(__aarch64__)
template <>
inline void store_sums<4, float>(const Vec<float>* x, float scale, float* s) {
  *reinterpret_cast<V<float>::Unaligned*>(s) = vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])) * scale;
}
#endif

template <int kRows, int kKeys, class T, class Stored>
inline void dots_of(const Stored* k, int64_t stride, int64_t dim, int64_t ahead, const T* q, int64_t q_stride, T scale,
                    T* s, int64_t s_stride) {
  constexpr int64_t kWidth = V<T>::kWidth, kLine = kCacheLine / static_cast<int64_t>(sizeof(Stored));
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(Stored));
  Vec<T> sum[kRows][kKeys] = {};
  const int64_t whole = dim / kWidth * kWidth;
  for (int64_t d = 0; d < whole; d += kWidth) {
    if (d % kLine == 0)
      for (int n = 0; n < kKeys; ++n) prefetch(k + n * stride + d, ahead * kSize);
    Vec<T> key[kKeys];
    for (int n = 0; n < kKeys; ++n) key[n] = load(k + n * stride + d);
    for (int r = 0; r < kRows; ++r) {
      const Vec<T> query = at(q + r * q_stride + d);
      for (int n = 0; n < kKeys; ++n) sum[r][n] += query * key[n];
    }
  }
  if (whole < dim) {
    for (int n = 0; n < kKeys; ++n) {
      const Vec<T> key = load_part<T>(k + n * stride + whole, dim - whole);
      for (int r = 0; r < kRows; ++r) sum[r][n] += at(q + r * q_stride + whole) * key;
    }
  }
  for (int r = 0; r < kRows; ++r) store_sums<kKeys, T>(sum[r], scale, s + r * s_stride);
}

template <int kRows, int kKeys, class T, class Stored>
inline void dots_rows(const KeyRows& k, int64_t head, int64_t key, int64_t row, const RowBlock<const T>& q, T scale,
                      const RowBlock<T>& s, int64_t ahead) {
  const Stored* from = static_cast<const Stored*>(k.data) + k.offset + head * k.head_stride + key * k.row_stride;
  dots_of<kRows, kKeys>(from, k.row_stride, k.dim, ahead, row_of(q, head, row), q.stride, scale,
                        row_of(s, head, row) + key, s.stride);
}

// A few keys of all heads at a time: where the heads of a key lie side by side that is the order of memory.
template <int kKeys, class T, class Stored>
inline void dots_keys(const KeyRows& k, int64_t key, const RowBlock<const T>& q, T scale, const RowBlock<T>& s,
                      int64_t ahead) {
  for (int64_t head = 0; head < k.heads; ++head) {
    int64_t row = 0;
    for (; row + 4 <= q.rows; row += 4) dots_rows<4, kKeys, T, Stored>(k, head, key, row, q, scale, s, ahead);
    if (q.rows - row == 3) dots_rows<3, kKeys, T, Stored>(k, head, key, row, q, scale, s, ahead);
    if (q.rows - row == 2) dots_rows<2, kKeys, T, Stored>(k, head, key, row, q, scale, s, ahead);
    if (q.rows - row == 1) dots_rows<1, kKeys, T, Stored>(k, head, key, row, q, scale, s, ahead);
  }
}

template <class T, class Stored>
void dots_stored(const KeyRows& k, const RowBlock<const T>& q, T scale, const RowBlock<T>& s) {
  const int64_t ahead = elements_ahead<Stored>(k, kDecodeKeys);
  int64_t key = 0;
  for (; key + kDecodeKeys <= k.keys; key += kDecodeKeys) dots_keys<kDecodeKeys, T, Stored>(k, key, q, scale, s, ahead);
  for (; key < k.keys; ++key) dots_keys<1, T, Stored>(k, key, q, scale, s, ahead);
}

// Weights of kGroup keys in one register where a lane multiplies as fast as a whole one, otherwise broadcast one by one.
#if defined(__aarch64__)
template <class T>
constexpr int kGroup = V<T>::kWidth;
#else
template <class T>
constexpr int kGroup = 1;
#endif

// sum += p v for kKeys keys and kVectors vectors of each; part: the elements of the only vector, where it is not whole.
template <int kRows, int kVectors, int kKeys, class T, class Stored>
inline void add_group(const Stored* v, int64_t stride, int64_t part, int64_t ahead, const T* p, int64_t p_stride,
                      Vec<T> (&sum)[kRows][kVectors]) {
  constexpr int kWidth = V<T>::kWidth;
#if defined(__aarch64__)
  Vec<T> weight[kRows];
  for (int r = 0; r < kRows; ++r) weight[r] = load(p + r * p_stride);
#endif
#pragma GCC unroll 4
  for (int k = 0; k < kKeys; ++k) {
    const Stored* row = v + k * stride;
    prefetch(row, ahead * static_cast<int64_t>(sizeof(Stored)));
    Vec<T> value[kVectors];
    for (int n = 0; n < kVectors; ++n) value[n] = part ? load_part<T>(row, part) : load(row + n * kWidth);
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
inline void add_strip(const Stored* v, int64_t stride, int64_t keys, int64_t part, int64_t ahead, const T* p,
                      int64_t p_stride, T* o, int64_t o_stride) {
  constexpr int kWidth = V<T>::kWidth;
  Vec<T> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kVectors; ++n) sum[r][n] = at(o + r * o_stride + n * kWidth);
  int64_t k = 0;
  for (; k + kGroup<T> <= keys; k += kGroup<T>)
    add_group<kRows, kVectors, kGroup<T>>(v + k * stride, stride, part, ahead, p + k, p_stride, sum);
  for (; k < keys; ++k) add_group<kRows, kVectors, 1>(v + k * stride, stride, part, ahead, p + k, p_stride, sum);
  for (int r = 0; r < kRows; ++r)
    for (int n = 0; n < kVectors; ++n) at(o + r * o_stride + n * kWidth) = sum[r][n];
}

template <int kRows, class T, class Stored>
inline void add_rows(const Stored* v, int64_t stride, int64_t keys, int64_t dim, int64_t ahead, const T* p,
                     int64_t p_stride, T* o, int64_t o_stride) {
  constexpr int64_t kWidth = V<T>::kWidth, kStrip = kDecodeVectors * kWidth;
  int64_t d = 0;
  for (; d + kStrip <= dim; d += kStrip)
    add_strip<kRows, kDecodeVectors>(v + d, stride, keys, 0, ahead, p, p_stride, o + d, o_stride);
  for (; d + kWidth <= dim; d += kWidth)
    add_strip<kRows, 1>(v + d, stride, keys, 0, ahead, p, p_stride, o + d, o_stride);
  if (d < dim) add_strip<kRows, 1>(v + d, stride, keys, dim - d, ahead, p, p_stride, o + d, o_stride);
}

// Keys whose values stay in the first-level cache while the strips of O pass over them.
constexpr int64_t kAddKeys = 16;

template <class T, class Stored>
void add_stored(const KeyRows& v, const RowBlock<const T>& p, const RowBlock<T>& o) {
  const int64_t ahead = elements_ahead<Stored>(v, kAddKeys);
  for (int64_t key = 0; key < v.keys; key += kAddKeys) {
    const int64_t keys = v.keys - key < kAddKeys ? v.keys - key : kAddKeys;
    for (int64_t head = 0; head < v.heads; ++head) {
      const Stored* from = static_cast<const Stored*>(v.data) + v.offset + head * v.head_stride + key * v.row_stride;
      const auto add = [&]<int kRows>(int64_t row) {
        add_rows<kRows>(from, v.row_stride, keys, v.dim, ahead, row_of(p, head, row) + key, p.stride,
                        row_of(o, head, row), o.stride);
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

template <class T>
void softmax_row(int64_t keys, T* s, T* m, T* l, T* o, int64_t dim) {
  constexpr int kWidth = V<T>::kWidth;
  for (int64_t k = keys; k % kWidth != 0; ++k) s[k] = -V<T>::kInfinity;
  Vec<T> tops = at(s);
  for (int64_t k = kWidth; k < keys; k += kWidth) tops = larger(at(s + k), tops);  // the sum carries a NaN
  T top = *m;
  for (int n = 0; n < kWidth; ++n) top = tops[n] > top ? tops[n] : top;
  // Nothing seen yet: subtracting -inf would give NaN, 0 stands in for it.
  const T reference = top == -V<T>::kInfinity ? T{0} : top;
  Vec<T> sums = {};
  for (int64_t k = 0; k < keys; k += kWidth) sums += at(s + k) = exp_of(at(s + k) - reference);
  const T sum = sum_of<T>(sums);
  if (top == *m) {
    *l += sum;
    return;
  }
  const T shrink = exp_of(Vec<T>{} + (*m - reference))[0];
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
  return {decode_widen, decode_dots, decode_add, softmax_row<T>, softcap_row<T>, is_finite<T>};
}
