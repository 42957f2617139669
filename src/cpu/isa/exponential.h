// exp and tanh of vectors. Included by vector_kernels.h, inside the namespace of an instruction set.

// larger: the maximum, NaN only if both are. at_most: the minimum, NaN if x is NaN. zero_below: 0 if x is below the
// limit, y otherwise and for NaN. In plain vector code GCC 12 spends up to ten instructions on each of these.
#if defined(__aarch64__)
inline Vec<float> larger(Vec<float> a, Vec<float> b) { return vmaxnmq_f32(a, b); }
inline Vec<double> larger(Vec<double> a, Vec<double> b) { return vmaxnmq_f64(a, b); }
inline Vec<float> at_most(Vec<float> x, float limit) { return vminq_f32(x, vdupq_n_f32(limit)); }
inline Vec<double> at_most(Vec<double> x, double limit) { return vminq_f64(x, vdupq_n_f64(limit)); }
inline Vec<float> zero_below(Vec<float> y, Vec<float> x, float limit) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, vdupq_n_f32(limit))));
}
inline Vec<float> zero_if_hidden(Vec<float> y, Vec<float> score) {
  const uint32x4_t hidden = vceqq_f32(score, vdupq_n_f32(-V<float>::kInfinity));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), hidden));
}
inline Vec<double> zero_if_hidden(Vec<double> y, Vec<double> score) {
  return score == -V<double>::kInfinity ? Vec<double>{} : y;
}
#else
template <class Vector>
inline Vector larger(Vector a, Vector b) {
  return a > b ? a : b;
}
inline Vec<float> at_most(Vec<float> x, float limit) { return x > limit ? Vec<float>{} + limit : x; }
inline Vec<double> at_most(Vec<double> x, double limit) { return x > limit ? Vec<double>{} + limit : x; }
inline Vec<float> zero_below(Vec<float> y, Vec<float> x, float limit) { return x < limit ? Vec<float>{} : y; }
template <class Vector>
inline Vector zero_if_hidden(Vector y, Vector score) {
  return score == -__builtin_inf() ? Vector{} : y;
}
#endif

// Whether any element differs; NaN differs from everything.
#if defined(__AVX512F__)
inline bool differ(Vec<float> a, Vec<float> b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0xffff; }
inline bool differ(Vec<double> a, Vec<double> b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ) != 0xff; }
#else
template <class Vector>
inline bool differ(Vector a, Vector b) {
  bool any = false;
  for (unsigned n = 0; n < sizeof a / sizeof a[0]; ++n) any |= !(a[n] == b[n]);
  return any;
}
#endif

// Forces x to be rounded: the compiler may not carry it unrounded into a fused operation.
template <class Vector>
inline Vector rounded(Vector x) {
#if defined(__aarch64__)
  __asm__("" : "+w"(x));
#elif defined(__x86_64__)
  __asm__("" : "+v"(x));
#endif
  return x;
}

template <int kCount>
struct Count {};

// Adding this number leaves round(y) in the low bits, with the bias of an exponent. Shifted to the place of the
// exponent, they are 2^round(y).
constexpr float kRound = 0x1.8p23f + 127;

// Coefficients of r, r^2 and so on, after 1, of a polynomial for 2^r that is fitted to relative error.
constexpr float kPower[] = {0x1.62e43p-1f,  0x1.ebfbdap-3f,  0x1.c6aed4p-5f,
                            0x1.3b2dbcp-7f, 0x1.5f456cp-10f, 0x1.41d334p-13f};

// x = e^(scale x), accurate for products <= 0, the only ones that matter. Exactly 1 for 0, exactly 0 for -inf and below
// the smallest normal number, NaN for NaN (which is why the last step multiplies: adding to the exponent would turn
// some NaN into numbers). 2^y = 2^n 2^r with n = round(y) and r in [-1/2, 1/2]; the polynomial leaves 1.6e-8. The
// stages run over several vectors at once, because a single chain of these operations would stall the processor.
#if defined(__AVX512F__)
// e^(scale x) in fused operations, which never compute y = x * to_base_2 itself. So x decides which powers are 0: those
// for x below `limit`, which is finite however small the scale is, so that -inf is always below it. coefficients: those
// of the polynomial, highest degree first.
template <int kCount, class... Floats>
inline void power_each(Vec<float> (&x)[kCount], float scale, Floats... coefficients) {
  const float factor = scale * 0x1.715476p+0f, smallest = -126.0f / factor;
  const __m512 to_base_2 = _mm512_set1_ps(factor), round = _mm512_set1_ps(kRound);
  const __m512 limit = _mm512_set1_ps(smallest > -__FLT_MAX__ ? smallest : -__FLT_MAX__);
  __m512 shifted[kCount], r[kCount], power[kCount];
  for (int n = 0; n < kCount; ++n) shifted[n] = _mm512_fmadd_ps(x[n], to_base_2, round);
  for (int n = 0; n < kCount; ++n) r[n] = _mm512_sub_ps(shifted[n], round);
  for (int n = 0; n < kCount; ++n) r[n] = _mm512_fmsub_ps(x[n], to_base_2, r[n]);
  const auto start = [&](float c) {
    for (int n = 0; n < kCount; ++n) power[n] = _mm512_set1_ps(c);
  };
  const auto add = [&](float c) {
    for (int n = 0; n < kCount; ++n) power[n] = _mm512_fmadd_ps(power[n], r[n], _mm512_set1_ps(c));
  };
  bool first = true;
  ((first ? start(coefficients) : add(coefficients), first = false), ...);
  for (int n = 0; n < kCount; ++n) {
    const __m512i whole = _mm512_slli_epi32(_mm512_castps_si512(shifted[n]), 23);
    const __mmask16 kept = _mm512_cmp_ps_mask(x[n], limit, _CMP_NLT_UQ);
    x[n] = _mm512_maskz_mul_ps(kept, power[n], _mm512_castsi512_ps(whole));
  }
}
template <int kCount>
inline void exp_each(Vec<float> (&x)[kCount], float scale) {
  power_each(x, scale, kPower[5], kPower[4], kPower[3], kPower[2], kPower[1], kPower[0], 1.0f);
}
// Exponentials for weights that are rounded to bf16: the polynomial leaves 1.1e-7.
template <int kCount>
inline void exp_each_for_bf16(Vec<float> (&x)[kCount], float scale) {
  power_each(x, scale, 0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f, 0x1.62e42ap-1f, 1.0f);
}
#else
template <int kCount>
inline void exp_each(Vec<float> (&x)[kCount], float scale) {
  typedef unsigned Bits __attribute__((vector_size(kVectorBytes), may_alias));
  const float to_base_2 = scale * 0x1.715476p+0f;
  Vec<float> y[kCount], shifted[kCount], minus_r[kCount], square[kCount], low[kCount], middle[kCount], high[kCount];
  for (int n = 0; n < kCount; ++n) y[n] = rounded(x[n] * to_base_2);
  for (int n = 0; n < kCount; ++n) shifted[n] = y[n] + kRound;
  for (int n = 0; n < kCount; ++n) minus_r[n] = (shifted[n] - kRound) - y[n];
  for (int n = 0; n < kCount; ++n) square[n] = minus_r[n] * minus_r[n];
  for (int n = 0; n < kCount; ++n) high[n] = kPower[3] - kPower[4] * minus_r[n];
  for (int n = 0; n < kCount; ++n) middle[n] = kPower[1] - kPower[2] * minus_r[n];
  for (int n = 0; n < kCount; ++n) high[n] += kPower[5] * square[n];
  for (int n = 0; n < kCount; ++n) low[n] = 1.0f - kPower[0] * minus_r[n];
  for (int n = 0; n < kCount; ++n) middle[n] += square[n] * high[n];
  for (int n = 0; n < kCount; ++n) low[n] += square[n] * middle[n];
  for (int n = 0; n < kCount; ++n) x[n] = zero_below(low[n] * (Vec<float>)((Bits)shifted[n] << 23), y[n], -126.0f);
}
#endif
template <int kCount>
inline void exp_each(Vec<double> (&x)[kCount], double scale) {
  for (int n = 0; n < kCount; ++n) {
    const Vec<double> y = x[n] * scale;
    Vec<double> power = {};
    for (int i = 0; i < V<double>::kWidth; ++i) power[i] = __builtin_exp(y[i]);
    x[n] = power;
  }
}

// tanh(x) = x P(x^2) / Q(x^2) up to |x| = 9, where it is 1 in float. The fit has a relative error of 2e-8, and under
// 3.2e-7 as computed. All coefficients are positive, so nothing cancels.
inline Vec<float> tanh_of(Vec<float> x) {
  const Vec<float> bounded = -at_most(-at_most(x, 9.0f), 9.0f);
  const Vec<float> z = bounded * bounded;
  Vec<float> p = 0x1.59c2fcp-16f + 0x1.cadbe2p-27f * z, q = 0x1.5885dep-12f + 0x1.a17f94p-21f * z;
  p = 0x1.ca2c4ep-9f + p * z, q = 0x1.a7f7dap-6f + q * z;
  p = 0x1.120b16p-3f + p * z, q = 0x1.de5ad4p-2f + q * z;
  p = 1.0f + p * z, q = 1.0f + q * z;
  return z >= 81.0f ? bounded * (1.0f / 9) : bounded * p / q;  // exactly 1: the slope there is 0, not a rounding error
}
inline Vec<double> tanh_of(Vec<double> x) {
  for (int n = 0; n < V<double>::kWidth; ++n) x[n] = __builtin_tanh(x[n]);
  return x;
}
