// Widens and narrows rows of the caller's tensors. Included by vector_kernels.h, inside the namespace of an instruction
// set.

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

// Widens one row of the caller's tensor to T. Sources have the type of the problem or f32.
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
  if (n == count) return;
  float last[8] = {};
  __builtin_memcpy(last, from + n, static_cast<size_t>(count - n) * sizeof(float));
  const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(last), 0);
  __builtin_memcpy(to + n, &half, static_cast<size_t>(count - n) * sizeof(uint16_t));
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

// Vectorised load_row and store_row of dtype.h.
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
