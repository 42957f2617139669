// Copies results out of panels. Included by vector_kernels.h, inside the namespace of an instruction set.

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

// Row by row, through staging.
template <class T>
void unpack_staged(int64_t dim, int64_t count, const T* panel, const T* factor, const Destination& to, T* staging) {
  unpack(dim, count, panel, factor, staging);
  for (int64_t q = 0; q < count; ++q) store(to.data, to.dtype, to.offset + q * to.row_stride, dim, staging + q * dim);
}

#if defined(__AVX512F__)
// Transposes x [16][16].
inline void transpose_words(__m512i (&x)[16]) {
  __m512i y[16];
  for (int n = 0; n < 16; n += 2) {
    y[n] = _mm512_unpacklo_epi32(x[n], x[n + 1]);
    y[n + 1] = _mm512_unpackhi_epi32(x[n], x[n + 1]);
  }
  for (int n = 0; n < 16; n += 4) {
    x[n] = _mm512_unpacklo_epi64(y[n], y[n + 2]);
    x[n + 1] = _mm512_unpackhi_epi64(y[n], y[n + 2]);
    x[n + 2] = _mm512_unpacklo_epi64(y[n + 1], y[n + 3]);
    x[n + 3] = _mm512_unpackhi_epi64(y[n + 1], y[n + 3]);
  }
  // Quarter q of x[4 g + n] is column 4 q + n of rows 4 g to 4 g + 3.
  for (int n = 0; n < 4; ++n) {
    const __m512i low = _mm512_shuffle_i32x4(x[n], x[4 + n], 0x88), odd = _mm512_shuffle_i32x4(x[n], x[4 + n], 0xdd);
    const __m512i high = _mm512_shuffle_i32x4(x[8 + n], x[12 + n], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(x[8 + n], x[12 + n], 0xdd);
    y[n] = _mm512_shuffle_i32x4(low, high, 0x88);
    y[8 + n] = _mm512_shuffle_i32x4(low, high, 0xdd);
    y[4 + n] = _mm512_shuffle_i32x4(odd, high_odd, 0x88);
    y[12 + n] = _mm512_shuffle_i32x4(odd, high_odd, 0xdd);
  }
  for (int n = 0; n < 16; ++n) x[n] = y[n];
}

// 16 dims of 16 lanes at a time, transposed in registers and written straight to the rows.
inline void unpack_f32(int64_t dim, int64_t count, const float* panel, const float* factor, float* rows,
                       int64_t stride) {
  constexpr int kLanes = V<float>::kLanes;
  for (int64_t lane = 0; lane < count; lane += 16) {
    const Vec<float> lane_factor = at(factor + lane);
    for (int64_t d = 0; d < dim; d += 16) {
      __m512i x[16];
      for (int n = 0; n < 16; ++n)
        x[n] = d + n < dim ? (__m512i)(at(panel + (d + n) * kLanes + lane) * lane_factor) : _mm512_setzero_si512();
      transpose_words(x);
      const auto mask = static_cast<__mmask16>(dim - d >= 16 ? 0xffff : (1 << (dim - d)) - 1);
      for (int n = 0; n < 16 && lane + n < count; ++n)
        _mm512_mask_storeu_ps(rows + (lane + n) * stride + d, mask, (__m512)x[n]);
    }
  }
}

inline void unpack_rows(int64_t dim, int64_t count, const float* panel, const float* factor, const Destination& to,
                        float* staging) {
  if (to.dtype == DType::f32)
    unpack_f32(dim, count, panel, factor, static_cast<float*>(to.data) + to.offset, to.row_stride);
  else unpack_staged(dim, count, panel, factor, to, staging);
}
#else
inline void unpack_rows(int64_t dim, int64_t count, const float* panel, const float* factor, const Destination& to,
                        float* staging) {
  unpack_staged(dim, count, panel, factor, to, staging);
}
#endif
inline void unpack_rows(int64_t dim, int64_t count, const double* panel, const double* factor, const Destination& to,
                        double* staging) {
  unpack_staged(dim, count, panel, factor, to, staging);
}
