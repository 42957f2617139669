// The score options, applied to a panel. Included by vector_kernels.h, inside the namespace of an instruction set.

template <class T>
void multiply_scores(int64_t keys, T* s, T scale) {
  for (int64_t n = 0; n < keys * V<T>::kLanes; n += V<T>::kWidth) at(s + n) *= scale;
}

template <class T>
void softcap(int64_t keys, T* s, T scale, T cap, T* slope) {
  typedef typename Exponent<T>::Int Int;
  typedef Int Bits __attribute__((vector_size(kVectorBytes), may_alias));
  constexpr Int kSign = Int{1} << (8 * sizeof(T) - 1);
  const T factor = scale / cap;
  const bool in_range = factor - factor == 0;  // a score of 0 times an infinite factor would be NaN
  for (int64_t n = 0; n < keys * V<T>::kLanes; n += V<T>::kWidth) {
    const Vec<T> x = in_range ? at(s + n) * factor : at(s + n) * scale / cap;
    at(s + n) = cap * tanh_of(x);
    if (!slope) continue;
    // 1 - tanh^2 = 4 e / (1 + e)^2 with e = exp(-2 |x|), which keeps all digits where tanh is almost 1.
    Vec<T> e[1] = {(Vec<T>)((Bits)x | kSign)};
    exp_each(e, T{2});
    at(slope + n) = T{4} * e[0] / ((T{1} + e[0]) * (T{1} + e[0]));
  }
}

template <class T>
void alibi(int64_t keys, T* s, T slope, int64_t position) {
  typedef typename Exponent<T>::Int Int;
  typedef Int Bits __attribute__((vector_size(kVectorBytes), may_alias));
  constexpr int kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes;
  constexpr Int kSign = Int{1} << (8 * sizeof(T) - 1);
  Vec<T> lane[kVectors] = {};
  for (int n = 0; n < kLanes; ++n) lane[n / kWidth][n % kWidth] = static_cast<T>(n);
  for (int64_t k = 0; k < keys; ++k) {
    const T first = static_cast<T>(position - k);
    for (int v = 0; v < kVectors; ++v) {
      const Vec<T> distance = (Vec<T>)((Bits)(first + lane[v]) & ~kSign);
      at(s + k * kLanes + v * kWidth) -= slope * distance;
    }
  }
}

#if defined(__AVX512F__)
// 16 lanes of 16 keys at a time, transposed in registers.
inline bool scale_and_add(const RowGroup<float>& rows, int64_t keys, float scale, float* s) {
  __m512 lowest = _mm512_setzero_ps();
  for (int lane = 0; lane < V<float>::kLanes; lane += 16)
    for (int64_t k = 0; k < keys; k += 16) {
      const int count = keys - k < 16 ? static_cast<int>(keys - k) : 16;
      __m512i x[16];
      for (int n = 0; n < 16; ++n)
        x[n] = _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1 << count) - 1),
                                        rows.first + (lane + n) * rows.stride + k);
      transpose_words(x);
      for (int n = 0; n < count; ++n) {
        const __m512 added = _mm512_castsi512_ps(x[n]);
        lowest = _mm512_maskz_min_ps(0xffff, added, lowest);
        Vec<float>& score = at(s + (k + n) * V<float>::kLanes + lane);
        score = score * scale + (Vec<float>)added;
      }
    }
  return _mm512_cmp_ps_mask(lowest, _mm512_set1_ps(-V<float>::kInfinity), _CMP_EQ_OQ) != 0;
}
#else
#if defined(__aarch64__)
inline Quad smaller(Quad a, Quad b) { return vminnmq_f32(a, b); }
#else
inline Quad smaller(Quad a, Quad b) { return a < b ? a : b; }
#endif

// Blocks of 4 x 4 go from rows [lane][key] to s [key][lane] without memory in between.
inline bool scale_and_add(const RowGroup<float>& rows, int64_t keys, float scale, float* s) {
  constexpr int kLanes = V<float>::kLanes;
  const int64_t whole = keys / 4 * 4;
  Quad lowest = {};
  bool hides = false;
  for (int lane = 0; lane < kLanes; lane += 4) {
    const float* first = rows.first + lane * rows.stride;
    for (int64_t k = 0; k < whole; k += 4) {
      Quad x[4];
      for (int n = 0; n < 4; ++n) x[n] = *reinterpret_cast<const Quad*>(first + n * rows.stride + k);
      lowest = smaller(smaller(smaller(x[0], x[1]), smaller(x[2], x[3])), lowest);
      transpose_quads(x);
      for (int n = 0; n < 4; ++n) {
        Quad& score = *reinterpret_cast<Quad*>(s + (k + n) * kLanes + lane);
        score = score * scale + x[n];
      }
    }
    for (int64_t k = whole; k < keys; ++k)
      for (int n = 0; n < 4; ++n) {
        const float x = first[n * rows.stride + k];
        s[k * kLanes + lane + n] = s[k * kLanes + lane + n] * scale + x;
        hides |= x == -V<float>::kInfinity;
      }
  }
  for (int n = 0; n < 4; ++n) hides |= lowest[n] == -V<float>::kInfinity;
  return hides;
}
#endif
inline bool scale_and_add(const RowGroup<double>& rows, int64_t keys, double scale, double* s) {
  constexpr int kLanes = V<double>::kLanes;
  bool hides = false;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int64_t k = 0; k < keys; ++k) {
      const double x = rows.first[lane * rows.stride + k];
      s[k * kLanes + lane] = s[k * kLanes + lane] * scale + x;
      hides |= x == -V<double>::kInfinity;
    }
  return hides;
}

template <class T>
bool add_rows(const Source& rows, T scale, T* s, T* staging) {
  return scale_and_add(rows_at<V<T>::kLanes>(rows, 0, staging), rows.dim, scale, s);
}

// A word holds 32 keys of a lane. A selection moves bits and computes nothing, so that a NaN behind the mask stays
// there.
template <class T>
void mask(int64_t keys, T* s, const uint32_t* words, int64_t first) {
  typedef typename Exponent<T>::Int Int;
  typedef Int Bits __attribute__((vector_size(kVectorBytes), may_alias));
  constexpr int kVectors = V<T>::kVectors, kWidth = V<T>::kWidth, kLanes = V<T>::kLanes;
  const Bits hidden = (Bits)(Vec<T>{} - V<T>::kInfinity);
  for (int64_t k = 0; k < keys;) {
    const uint32_t* word = words + (first + k) / 32 * kLanes;
    Bits lanes[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      Int wide[kWidth];
      for (int n = 0; n < kWidth; ++n) wide[n] = static_cast<Int>(word[v * kWidth + n]);
      __builtin_memcpy(&lanes[v], wide, kVectorBytes);
    }
    const int64_t bit = (first + k) % 32, end = keys - k < 32 - bit ? bit + keys - k : 32;
    for (int64_t n = bit; n < end; ++n, ++k) {
      const Int one = static_cast<Int>(uint32_t{1} << n);
      for (int v = 0; v < kVectors; ++v) {
        const Bits seen = (lanes[v] & one) != 0;
        Vec<T>& score = at(s + k * kLanes + v * kWidth);
        score = (Vec<T>)((seen & (Bits)score) | (~seen & hidden));
      }
    }
  }
}

template <class T>
void drop(int64_t keys, T* s, const T* keep) {
  for (int64_t n = 0; n < keys * V<T>::kLanes; n += V<T>::kWidth) at(s + n) *= at(keep + n);
}

template <class T>
void add(int64_t keys, const T* w, T* sums) {
  for (int64_t n = 0; n < keys * V<T>::kLanes; n += V<T>::kWidth) at(sums + n) += at(w + n);
}

typedef uint32_t Words __attribute__((vector_size(kVectorBytes), may_alias));
typedef uint64_t LongWords __attribute__((vector_size(kVectorBytes), may_alias));

// The upper and lower halves of 32 x 32 bit products.
struct Halves {
  Words high, low;
};
#if defined(__aarch64__)
inline Halves wide_product(Words x, uint32_t factor) {
  const uint32x4_t even = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vdup_n_u32(factor)));
  const uint32x4_t odd = vreinterpretq_u32_u64(vmull_high_u32(x, vdupq_n_u32(factor)));
  return {vuzp2q_u32(even, odd), vuzp1q_u32(even, odd)};
}
#else
inline LongWords product_of_low_halves(LongWords x, LongWords y) {
#if defined(__AVX512F__)
  return (LongWords)_mm512_maskz_mul_epu32(0xff, (__m512i)x, (__m512i)y);  // GCC 12 warns about the unmasked one
#elif defined(__AVX2__)
  return (LongWords)_mm256_mul_epu32((__m256i)x, (__m256i)y);
#elif defined(__SSE2__)
  return (LongWords)_mm_mul_epu32((__m128i)x, (__m128i)y);
#else
  return (x & 0xffffffffu) * y;
#endif
}
inline Halves wide_product(Words x, uint32_t factor) {
  const LongWords factors = LongWords{} + factor;
  const LongWords even = product_of_low_halves((LongWords)x, factors);
  const LongWords odd = product_of_low_halves((LongWords)x >> 32, factors);
  return {(Words)((even >> 32) | (odd & ~uint64_t{0xffffffff})), (Words)((even & 0xffffffffu) | (odd << 32))};
}
#endif

// philox2x32_7 of philox.h for the counters of several vectors.
template <int kCount>
inline void philox(uint32_t key, Words (&counter)[kCount][2], Words (&low)[kCount][2]) {
  for (int round = 0; round < kDropoutRounds; ++round) {
    for (int n = 0; n < kCount; ++n) {
      Words(&c)[2] = counter[n];
      if (round == kLowRounds) low[n][0] = c[0], low[n][1] = c[1];
      const Halves product = wide_product(c[0], kDropoutMultiplier);
      c[0] = product.high ^ key ^ c[1];
      c[1] = product.low;
    }
    key += kDropoutKeyStep;
  }
}

// Two windows for each lane of a row of groups, side by side: of columns c and c + 2 in windows[c].
inline void windows_of(Words word, Words low, Words (&windows)[2]) {
  constexpr uint32_t kUpper = 0xff00ff00u;
  windows[0] = (word << 8 & kUpper) | (low & ~kUpper);
  windows[1] = (word & kUpper) | (low >> 8 & ~kUpper);
}
// All ones where the upper half of a word is a window of at least the rank of the bound, 0 elsewhere.
typedef int32_t Masks __attribute__((vector_size(kVectorBytes), may_alias));
inline Masks at_least(Words windows, uint32_t bound) {
  // dropout_rank, of which the highest bit is inverted so that signed numbers can be compared.
  const Words in_order = windows ^ ((Words)((Masks)windows >> 31) & 0x7fffffffu);
  return (Masks)(in_order - (127u << 16)) >= static_cast<int32_t>((bound ^ 0x8000u) << 16);
}

// One row of groups for each two of the first 8 keys of 16. Several rows are computed at once, so that one product need
// not wait for the other.
template <class T>
void draw_dropout(int64_t keys, const DropoutDraw& draw, T kept, T* keep) {
  typedef typename Exponent<T>::Int Int;
  constexpr int kLanes = V<T>::kLanes, kWords = kVectorBytes / 4, kGroups = kLanes / 2;
  constexpr int kVectors = (kGroups + kWords - 1) / kWords, kAtOnce = 4;
  const auto inverted = static_cast<int32_t>(draw.rule.inverted);
  Int kept_bits;
  __builtin_memcpy(&kept_bits, &kept, sizeof(T));
  Words counter_i[kVectors] = {};
  for (int n = 0; n < kVectors * kWords; ++n)
    counter_i[n / kWords][n % kWords] = draw.counter_i + static_cast<uint32_t>(n);
  for (int64_t row = 0; row < (keys + 15) / 16 * 4; row += kAtOnce) {
    Words counter[kAtOnce * kVectors][2], low[kAtOnce * kVectors][2];
    for (int n = 0; n < kAtOnce * kVectors; ++n) {
      counter[n][0] = counter_i[n % kVectors];
      counter[n][1] = Words{} + (draw.counter_j + static_cast<uint32_t>(row + n / kVectors));
    }
    philox(draw.key, counter, low);
    for (int r = 0; r < kAtOnce; ++r)
      for (int second = 0; second < 2; ++second) {
        alignas(64) int32_t masks[4][kVectors * kWords];
        for (int v = 0; v < kVectors; ++v) {
          Words windows[2];
          windows_of(counter[r * kVectors + v][second], low[r * kVectors + v][second], windows);
          for (int c = 0; c < 4; ++c)
            *reinterpret_cast<Masks*>(&masks[c][v * kWords]) =
                at_least(c < 2 ? windows[c] << 16 : windows[c - 2], draw.rule.bound) ^ inverted;
        }
        T* first = keep + (row / 4 * 16 + r * 2) * kLanes + second * 8;
        for (int c = 0; c < 4; ++c)
          for (int q = 0; q < kGroups; ++q) {
            const Int bits = masks[c][q] & kept_bits;
            __builtin_memcpy(first + (c / 2 * 8 + c % 2) * kLanes + q / 8 * 16 + q % 8, &bits, sizeof(T));
          }
      }
  }
}
