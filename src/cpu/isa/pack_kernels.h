// Packs rows of the caller's tensors into operands of products. Included by vector_kernels.h, inside the namespace of
// an instruction set.

typedef float Quad __attribute__((vector_size(16), may_alias, aligned(4)));

inline void transpose_quads(Quad (&x)[4]) {
  const Quad ab_low = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
             ab_high = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const Quad cd_low = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5),
             cd_high = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

// out [column][row] = in [row][column], times factor [column] if kScaled.
template <int kRows, bool kScaled = false>
inline void transpose(int64_t columns, const float* in, int64_t in_stride, float* out, int64_t out_stride,
                      const float* factor = nullptr) {
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
      Quad x[4];
      for (int n = 0; n < 4; ++n) x[n] = load_quad(rows + n * in_stride, c);
      transpose_quads(x);
      for (int n = 0; n < 4; ++n) *reinterpret_cast<Quad*>(to + n * out_stride) = x[n];
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

// The exponent bits, which are all set in Inf and NaN.
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
  IntVec nonfinite = {};
  const int64_t whole = dim / kWidth * kWidth;
  for (int64_t d = 0; d < whole; d += kWidth)
    nonfinite |= (*reinterpret_cast<const IntVec*>(row + d) & kExponent) == kExponent;
  Int any = 0;
  for (int n = 0; n < kWidth; ++n) any |= nonfinite[n];
  for (int64_t d = whole; d < dim; ++d) any |= (__builtin_bit_cast(Int, row[d]) & kExponent) == kExponent;
  return any == 0;
}

template <class T>
struct RowGroup {
  const T* first;
  int64_t stride;
};

// Rows first .. first + kWidth - 1: in place if they need no conversion, otherwise staged. With `few`, rows beyond the
// last one are not accessible; otherwise they are zero.
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

// to [dim][kWidth] = a few rows, and zeros for the others.
template <int kWidth, class T>
void scatter_rows(const RowGroup<T>& rows, int64_t count, int64_t dim, T* to) {
  __builtin_memset(to, 0, static_cast<size_t>(dim * kWidth) * sizeof(T));
  for (int64_t r = 0; r < count; ++r)
    for (int64_t d = 0; d < dim; ++d) to[d * kWidth + r] = rows.first[r * rows.stride + d];
}

// to [dim / kWidth][capacity][kWidth] = up to kWidth rows, zero-padded to a whole panel and zero for non-finite rows.
// Goes panel by panel, so that it writes whole cache lines.
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
int64_t pack_panels(const Source& source, T* by_dim, T* by_row, int64_t capacity, int32_t* nonfinite, T* staging) {
  const int64_t dim = source.dim;
  int64_t nonfinite_rows = 0;
  for (int64_t first = 0; first < source.count; first += kWidth) {
    const int64_t count = source.count - first < kWidth ? source.count - first : kWidth;
    const bool few = 4 * count <= kWidth;  // writing zeros is cheaper than transposing them
    const RowGroup<T> rows = rows_at<kWidth>(source, first, staging, few);
    if (by_dim && few) scatter_rows<kWidth>(rows, count, dim, by_dim + first * dim);
    else if (by_dim) transpose<kWidth>(dim, rows.first, rows.stride, by_dim + first * dim, kWidth);
    if (!by_row) continue;
    bool finite[kWidth] = {};
    for (int64_t r = 0; r < count; ++r) {
      finite[r] = is_finite(rows.first + r * rows.stride, dim);
      if (!finite[r]) nonfinite[nonfinite_rows++] = static_cast<int32_t>(first + r);
    }
    spread_rows<kWidth>(rows, count, finite, dim, capacity, by_row + first * kWidth);
  }
  return nonfinite_rows;
}

template <class T>
int64_t pack(const Source& source, Side side, T* by_dim, T* by_row, int64_t capacity, int32_t* nonfinite, T* staging) {
  return side == Side::left ? pack_panels<V<T>::kRows>(source, by_dim, by_row, capacity, nonfinite, staging)
                            : pack_panels<V<T>::kLanes>(source, by_dim, by_row, capacity, nonfinite, staging);
}
