// aarch64 with BFMMLA: products of bf16 rows for the decode path. One instruction multiplies 2 x 4 by 4 x 2 elements
// and adds to 2 x 2 sums in f32: two query rows times two keys over four dims, or times two dims over four keys. A
// single row would use half of that, so it uses BFDOT, a vector instruction, over pairs of dims and of keys.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "cpu/isa/isa.h"

namespace cuflash::cpu {
namespace bfmmla_decode_kernels {

#include "cpu/isa/decode_rows.h"

// Calls body<rows>(first row) for all rows, eight at a time.
template <class Body>
inline void for_rows(int64_t rows, Body body) {
  int64_t row = 0;
  for (; row + 8 <= rows; row += 8) body.template operator()<8>(row);
  switch (rows - row) {
    case 1: return body.template operator()<1>(row);
    case 2: return body.template operator()<2>(row);
    case 3: return body.template operator()<3>(row);
    case 4: return body.template operator()<4>(row);
    case 5: return body.template operator()<5>(row);
    case 6: return body.template operator()<6>(row);
    case 7: return body.template operator()<7>(row);
    default: return;
  }
}

inline uint16x8_t load_part(const uint16_t* p, int64_t count) {
  uint16_t padded[8] = {};
  for (int64_t n = 0; n < count; ++n) padded[n] = p[n];
  return vld1q_u16(padded);
}

inline uint32_t two_of(const uint16_t* p) {
  uint32_t two;
  __builtin_memcpy(&two, p, sizeof two);
  return two;
}
inline bfloat16x8_t bf16_of(uint16x8_t bits) { return vreinterpretq_bf16_u16(bits); }
inline float32x4_t mma(float32x4_t sum, uint16x8_t a, uint16x8_t b) {
  return vbfmmlaq_f32(sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
}
inline uint16x8_t low_halves(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u64(vzip1q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}
inline uint16x8_t high_halves(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u64(vzip2q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}

// Interleaves two rows of floats as a left operand, four elements of each. The values are already bf16, so this does
// not round.
inline uint16x8_t exact_pair(float32x4_t a, float32x4_t b) {
  return vshrn_high_n_u32(vshrn_n_u32(vreinterpretq_u32_f32(a), 16), vreinterpretq_u32_f32(b), 16);
}

// Packs query rows in place as left operands [dim / 4][pair][2 rows x 4 dims], zero-padded to eight dims. A single row
// is only narrowed.
template <int kRows>
inline void pack_rows(float* q, int64_t stride, int64_t dim) {
  constexpr int kPairs = (kRows + 1) / 2;
  const int64_t whole = (dim + 7) / 8 * 8;
  float rows[2 * kPairs][kMatrixDim];
  for (int r = 0; r < kRows; ++r) {
    __builtin_memcpy(rows[r], q + r * stride, static_cast<size_t>(dim) * sizeof(float));
    for (int64_t d = dim; d < whole; ++d) rows[r][d] = 0;
  }
  if (kRows % 2 != 0) __builtin_memset(rows[2 * kPairs - 1], 0, static_cast<size_t>(whole) * sizeof(float));
  auto* packed = reinterpret_cast<uint16_t*>(q);
  if constexpr (kRows == 1) {
    for (int64_t d = 0; d < whole; d += 8)
      vst1q_u16(packed + d, exact_pair(vld1q_f32(rows[0] + d), vld1q_f32(rows[0] + d + 4)));
    return;
  }
  for (int64_t d = 0; d < whole; d += 4)
    for (int pair = 0; pair < kPairs; ++pair, packed += 8)
      vst1q_u16(packed, exact_pair(vld1q_f32(rows[2 * pair] + d), vld1q_f32(rows[2 * pair + 1] + d)));
}
void pack(RowBlock<float> q, int64_t heads, int64_t dim) {
  for (int64_t head = 0; head < heads; ++head)
    for_rows(q.rows, [&]<int kRows>(int64_t row) { pack_rows<kRows>(row_of(q, head, row), q.stride, dim); });
}

// s = scale q . k for kKeys keys; kKeys must be even.
template <int kRows, int kKeys>
__attribute__((noinline)) void dots_of(const uint16_t* k, int64_t stride, int64_t dim, Prefetch prefetch,
                                       const uint16_t* packed, float scale, float* s, int64_t s_stride) {
  constexpr int kPairs = (kRows + 1) / 2;
  float32x4_t sum[kPairs][kKeys / 2] = {};
  const auto step = [&](int64_t d, const uint16x8_t(&key)[kKeys]) {
    for (int half = 0; half < 2; ++half) {
      uint16x8_t query[kPairs];
      for (int pair = 0; pair < kPairs; ++pair) query[pair] = vld1q_u16(packed + ((d / 4 + half) * kPairs + pair) * 8);
      for (int n = 0; n < kKeys / 2; ++n) {
        const uint16x8_t two =
            half == 0 ? low_halves(key[2 * n], key[2 * n + 1]) : high_halves(key[2 * n], key[2 * n + 1]);
        for (int pair = 0; pair < kPairs; ++pair) sum[pair][n] = mma(sum[pair][n], query[pair], two);
      }
    }
  };
  int64_t d = 0;
  for (; d + 8 <= dim; d += 8) {
    uint16x8_t key[kKeys];
    for (int n = 0; n < kKeys; ++n) key[n] = vld1q_u16(k + n * stride + d);
    if (d % 32 == 0)
      for (int n = 0; n < kKeys; ++n) {
        prefetch_l2(k + d, n, prefetch);
        __builtin_prefetch(k + n * stride + d + prefetch.l1);
      }
    step(d, key);
  }
  if (d < dim) {
    uint16x8_t key[kKeys];
    for (int n = 0; n < kKeys; ++n) key[n] = load_part(k + n * stride + d, dim - d);
    step(d, key);
  }
  for (int pair = 0; pair < kPairs; ++pair) {
    for (int n = 0; n < kKeys / 2; ++n) {
      const float32x4_t scaled = sum[pair][n] * scale;
      vst1_f32(s + 2 * pair * s_stride + 2 * n, vget_low_f32(scaled));
      if (2 * pair + 1 < kRows) vst1_f32(s + (2 * pair + 1) * s_stride + 2 * n, vget_high_f32(scaled));
    }
  }
}

// s = scale q . k for one row and two keys. Four or eight keys at a time would shorten the dependency chains, but read
// memory less sequentially, at 95% of the speed.
__attribute__((noinline)) void dots_of_row(const uint16_t* k, int64_t stride, int64_t dim, Prefetch prefetch,
                                           const uint16_t* q, float scale, float* s) {
  constexpr int kKeys = 2, kSums = 2;
  float32x4_t sum[kKeys][kSums] = {};
  int64_t d = 0;
  for (; d + 8 * kSums <= dim; d += 8 * kSums) {
    if (d % 32 == 0)
      for (int n = 0; n < kKeys; ++n) prefetch_l2(k + d, n, prefetch);
    for (int x = 0; x < kSums; ++x) {
      const bfloat16x8_t query = bf16_of(vld1q_u16(q + d + 8 * x));
      for (int n = 0; n < kKeys; ++n)
        sum[n][x] = vbfdotq_f32(sum[n][x], bf16_of(vld1q_u16(k + n * stride + d + 8 * x)), query);
    }
  }
  for (; d < dim; d += 8) {
    const bfloat16x8_t query = bf16_of(vld1q_u16(q + d));
    const int64_t count = dim - d < 8 ? dim - d : 8;
    for (int n = 0; n < kKeys; ++n)
      sum[n][0] = vbfdotq_f32(sum[n][0], bf16_of(load_part(k + n * stride + d, count)), query);
  }
  const float32x4_t pairs = vpaddq_f32(sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]);
  vst1_f32(s, vpadd_f32(vget_low_f32(pairs), vget_high_f32(pairs)) * scale);
}

template <int kKeys>
inline void dots_keys(const KeyRows& k, int64_t head, int64_t key, const RowBlock<const float>& q, float scale,
                      const RowBlock<float>& s, Prefetch prefetch) {
  for_rows(q.rows, [&]<int kRows>(int64_t row) {
    const auto* packed = reinterpret_cast<const uint16_t*>(row_of(q, head, row));
    float* to = row_of(s, head, row) + key;
    if constexpr (kRows == 1) {
      const auto* first = key_row<uint16_t>(k, head, key);
      for (int n = 0; n + 2 <= kKeys; n += 2)
        dots_of_row(first + n * k.row_stride, k.row_stride, k.dim, prefetch, packed, scale, to + n);
      if constexpr (kKeys == 1) {
        float twice[2];  // the minimum is two keys, so pass the same one twice
        dots_of_row(first, 0, k.dim, prefetch, packed, scale, twice), to[0] = twice[0];
      }
    } else if constexpr (kKeys > 1) {
      dots_of<kRows, kKeys>(key_row<uint16_t>(k, head, key), k.row_stride, k.dim, prefetch, packed, scale, to,
                            s.stride);
    } else {
      float twice[kRows][2];  // the same key twice
      dots_of<kRows, 2>(key_row<uint16_t>(k, head, key), 0, k.dim, prefetch, packed, scale, twice[0], 2);
      for (int r = 0; r < kRows; ++r) to[r * s.stride] = twice[r][0];
    }
  });
}

// One row per head, as in most calls. The heads alternate every two keys, so that memory is read in order.
void dots_of_single_rows(const KeyRows& k, RowBlock<const float> q, float scale, RowBlock<float> s) {
  const Prefetch prefetch = prefetch_of(k, sizeof(uint16_t), 4, 0);
  int64_t key = 0;
  for (; key + 2 <= k.keys; key += 2)
    for (int64_t head = 0; head < k.heads; ++head)
      dots_of_row(key_row<uint16_t>(k, head, key), k.row_stride, k.dim, prefetch,
                  reinterpret_cast<const uint16_t*>(row_of(q, head, 0)), scale, row_of(s, head, 0) + key);
  for (int64_t head = 0; key < k.keys && head < k.heads; ++head) dots_keys<1>(k, head, key, q, scale, s, prefetch);
}

void dots(const KeyRows& k, RowBlock<const float> q, float scale, RowBlock<float> s) {
  // Reading pages in order is not faster: presumably the hardware prefetcher fetches what follows them in memory.
  const bool in_pages = k.prefetch_distance != 0;
  if (q.rows == 1 && !in_pages) return dots_of_single_rows(k, q, scale, s);
  const Prefetch prefetch = prefetch_of(k, sizeof(uint16_t), q.rows == 1 ? 4 : 8, q.rows == 1 ? 0 : 8);
  int64_t key = 0;
  for (; key + 8 <= k.keys; key += 8)
    for (int64_t head = 0; head < k.heads; ++head) dots_keys<8>(k, head, key, q, scale, s, prefetch.of_head(head));
  for (; key + 2 <= k.keys; key += 2)
    for (int64_t head = 0; head < k.heads; ++head) dots_keys<2>(k, head, key, q, scale, s, prefetch);
  for (; key < k.keys; ++key)
    for (int64_t head = 0; head < k.heads; ++head) dots_keys<1>(k, head, key, q, scale, s, prefetch);
}

// Keys whose values stay in L1 while the strips of O pass over them: the more keys, the less often O is loaded and
// stored. Rows that are far apart compete for few sets of the cache.
constexpr int64_t kMaxAddKeys = 32;
inline int64_t add_keys(const KeyRows& v, int64_t rows) { return v.heads > 1 || rows <= 2 ? 16 : kMaxAddKeys; }

// The 2 x 2 accumulators of a strip of O: as many dims as the registers hold.
template <int kRows>
struct Strip {
  static constexpr int kPairs = (kRows + 1) / 2, kDims = kPairs <= 2 ? 16 : 8;
  float32x4_t sum[kPairs][kDims / 2];

  void load(const float* o, int64_t stride) {
    for (int pair = 0; pair < kPairs; ++pair) {
      const float* row = o + 2 * pair * stride;
      for (int n = 0; n < kDims; n += 4) {
        const float32x4_t a = vld1q_f32(row + n),
                          b = 2 * pair + 1 < kRows ? vld1q_f32(row + stride + n) : float32x4_t{};
        sum[pair][n / 2] = halves(a, b).val[0], sum[pair][n / 2 + 1] = halves(a, b).val[1];
      }
    }
  }
  void store(float* o, int64_t stride) const {
    for (int pair = 0; pair < kPairs; ++pair) {
      float* row = o + 2 * pair * stride;
      for (int n = 0; n < kDims; n += 4) {
        const float32x4x2_t rows = halves(sum[pair][n / 2], sum[pair][n / 2 + 1]);
        vst1q_f32(row + n, rows.val[0]);
        if (2 * pair + 1 < kRows) vst1q_f32(row + stride + n, rows.val[1]);
      }
    }
  }
  // Adds four keys: eight dims of each, starting at dim `first` of the strip, times p [pair][2 rows x 4 keys].
  void add(const uint16x8_t (&value)[4], int first, const uint16_t* p) {
    const uint16x8x2_t even = vzipq_u16(value[0], value[2]), odd = vzipq_u16(value[1], value[3]);
    const uint16x8x2_t low = vzipq_u16(even.val[0], odd.val[0]), high = vzipq_u16(even.val[1], odd.val[1]);
    for (int pair = 0; pair < kPairs; ++pair) {
      const uint16x8_t weight = vld1q_u16(p + pair * 8);
      float32x4_t* to = sum[pair] + first / 2;
      to[0] = mma(to[0], weight, low.val[0]);
      to[1] = mma(to[1], weight, low.val[1]);
      to[2] = mma(to[2], weight, high.val[0]);
      to[3] = mma(to[3], weight, high.val[1]);
    }
  }

 private:
  // [a0 a1 b0 b1] and [a2 a3 b2 b3]: converts rows to accumulators and back.
  static float32x4x2_t halves(float32x4_t a, float32x4_t b) {
    const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return {{vreinterpretq_f32_f64(vzip1q_f64(x, y)), vreinterpretq_f32_f64(vzip2q_f64(x, y))}};
  }
};

// o += p v over a strip. p [key / 4][pair][2 rows x 4 keys] is 0 for missing keys.
template <int kRows>
inline void add_strip(const uint16_t* v, int64_t stride, int64_t keys, int64_t l1, const uint16_t* p, float* o,
                      int64_t o_stride) {
  Strip<kRows> strip;
  strip.load(o, o_stride);
  int64_t k = 0;
  for (; k + 4 <= keys; k += 4, p += Strip<kRows>::kPairs * 8) {
    for (int first = 0; first < Strip<kRows>::kDims; first += 8) {
      uint16x8_t value[4];
      for (int n = 0; n < 4; ++n) value[n] = vld1q_u16(v + (k + n) * stride + first);
      strip.add(value, first, p);
    }
    for (int n = 0; n < 4; ++n) __builtin_prefetch(v + (k + n) * stride + l1);
  }
  if (k < keys) {
    for (int first = 0; first < Strip<kRows>::kDims; first += 8) {
      uint16x8_t value[4] = {};
      for (int n = 0; n < keys - k; ++n) value[n] = vld1q_u16(v + (k + n) * stride + first);
      strip.add(value, first, p);
    }
  }
  strip.store(o, o_stride);
}

// o += p v over the last dims of a row, fewer than a strip, without reading beyond the end of a row.
template <int kRows>
void add_last_strip(const uint16_t* v, int64_t stride, int64_t keys, int64_t dims, const uint16_t* p, float* o,
                    int64_t o_stride) {
  Strip<kRows> strip;
  strip.load(o, o_stride);
  for (int64_t k = 0; k < keys; k += 4, p += Strip<kRows>::kPairs * 8) {
    for (int first = 0; first < dims; first += 8) {
      uint16x8_t value[4] = {};
      for (int n = 0; n < 4 && n < keys - k; ++n)
        value[n] = load_part(v + (k + n) * stride + first, dims - first < 8 ? dims - first : 8);
      strip.add(value, first, p);
    }
  }
  strip.store(o, o_stride);
}

template <int kRows>
inline void pack_weights(const float* p, int64_t stride, int64_t keys, uint16_t* packed) {
  constexpr int kPairs = (kRows + 1) / 2;
  for (int64_t k = 0; k < keys; k += 4) {
    for (int pair = 0; pair < kPairs; ++pair) {
      const float* row = p + 2 * pair * stride + k;  // zero-padded to a whole vector
      const float32x4_t second = 2 * pair + 1 < kRows ? vld1q_f32(row + stride) : float32x4_t{};
      vst1q_u16(packed + (k / 4 * kPairs + pair) * 8, exact_pair(vld1q_f32(row), second));
    }
  }
}

template <int kRows>
__attribute__((noinline)) void add_rows(const uint16_t* v, int64_t stride, int64_t keys, int64_t dim, Prefetch prefetch,
                                        const float* p, int64_t p_stride, float* o, int64_t o_stride) {
  constexpr int kStrip = Strip<kRows>::kDims;
  uint16_t packed[kMaxAddKeys * 8];
  pack_weights<kRows>(p, p_stride, keys, packed);
  const int64_t few = (keys * kStrip + dim - 1) / dim;
  int64_t row = 0;
  for (int64_t d = 0; d < dim; d += kStrip) {
    for (int64_t n = 0; n < few; ++n, ++row)
      for (int64_t line = 0; line < dim; line += 32) prefetch_l2(v + line, row, prefetch);
    if (d + kStrip <= dim) add_strip<kRows>(v + d, stride, keys, prefetch.l1, packed, o + d, o_stride);
    else add_last_strip<kRows>(v + d, stride, keys, dim - d, packed, o + d, o_stride);
  }
}

// One row: o += p v of kKeys keys over 8 kVectors dims; the last vector may have fewer. The values of two keys are
// interleaved as pairs, as are their weights.
template <int kKeys, int kVectors>
inline void add_pairs(const uint16_t* v, int64_t stride, int64_t dims, const bfloat16x8_t (&weights)[kKeys / 2],
                      float* o) {
  float32x4_t sum[2 * kVectors];
  for (int n = 0; n < 2 * kVectors; ++n) sum[n] = vld1q_f32(o + 4 * n);
  for (int key = 0; key < kKeys; key += 2) {
    for (int n = 0; n < kVectors; ++n) {
      const auto load = [&](int k) {
        const uint16_t* at = v + k * stride + 8 * n;
        return dims < 8 ? load_part(at, dims) : vld1q_u16(at);
      };
      const uint16x8_t first = load(key), second = load(key + 1);
      sum[2 * n] = vbfdotq_f32(sum[2 * n], bf16_of(vzip1q_u16(first, second)), weights[key / 2]);
      sum[2 * n + 1] = vbfdotq_f32(sum[2 * n + 1], bf16_of(vzip2q_u16(first, second)), weights[key / 2]);
    }
  }
  for (int n = 0; n < 2 * kVectors; ++n) vst1q_f32(o + 4 * n, sum[n]);
}
// Whole rows of a few keys, one cache line at a time, so that memory is read in order. Passing over more keys with half
// of the dims would save loads and stores of o, but read memory at three quarters of the speed.
template <int kKeys>
inline void add_few_keys(const uint16_t* v, int64_t stride, int64_t dim, Prefetch prefetch, const uint16_t* p,
                         float* o) {
  bfloat16x8_t weights[kKeys / 2];
  for (int n = 0; n < kKeys / 2; ++n) weights[n] = bf16_of(vreinterpretq_u16_u32(vdupq_n_u32(two_of(p + 2 * n))));
  int64_t d = 0;
  for (; d + 32 <= dim; d += 32) {
    for (int n = 0; n < kKeys; ++n) prefetch_l2(v + d, n, prefetch);
    add_pairs<kKeys, 4>(v + d, stride, 8, weights, o + d);
  }
  for (; d < dim; d += 8) add_pairs<kKeys, 1>(v + d, stride, dim - d, weights, o + d);
}
__attribute__((noinline)) void add_row(const uint16_t* v, int64_t stride, int64_t keys, int64_t dim, Prefetch prefetch,
                                       const float* p, float* o) {
  uint16_t packed[kMaxAddKeys];
  for (int64_t k = 0; k < keys; k += 4)  // p is readable up to a whole vector
    vst1_u16(packed + k, vshrn_n_u32(vreinterpretq_u32_f32(vld1q_f32(p + k)), 16));
  int64_t k = 0;
  for (; k + 4 <= keys; k += 4) add_few_keys<4>(v + k * stride, stride, dim, prefetch, packed + k, o);
  for (; k + 2 <= keys; k += 2) add_few_keys<2>(v + k * stride, stride, dim, prefetch, packed + k, o);
  if (k == keys) return;
  const uint16_t last[2] = {packed[k], 0};  // paired with itself at weight 0
  add_few_keys<2>(v + k * stride, 0, dim, prefetch, last, o);
}

void add(const KeyRows& v, RowBlock<const float> p, RowBlock<float> o) {
  const int64_t chunk = add_keys(v, p.rows);
  // The heads alternate over the rows of a chunk: lines that the first head prefetches have arrived when the last head
  // reads them.
  const Prefetch prefetch = p.rows == 1 ? prefetch_of(v, sizeof(uint16_t), v.heads > 1 ? chunk / 2 : chunk, 0)
                                        : prefetch_of(v, sizeof(uint16_t), chunk, chunk);
  for (int64_t key = 0; key < v.keys; key += chunk) {
    const int64_t keys = v.keys - key < chunk ? v.keys - key : chunk;
    for (int64_t head = 0; head < v.heads; ++head) {
      for_rows(p.rows, [&]<int kRows>(int64_t row) {
        const auto* values = key_row<uint16_t>(v, head, key);
        const float* weights = row_of(p, head, row) + key;
        if constexpr (kRows == 1) add_row(values, v.row_stride, keys, v.dim, prefetch, weights, row_of(o, head, row));
        else
          add_rows<kRows>(values, v.row_stride, keys, v.dim, prefetch.of_head(head), weights, p.stride,
                          row_of(o, head, row), o.stride);
      });
    }
  }
}

// Two accumulators each, because a single one would be a serial dependency chain.
void round(int64_t keys, float* p, float* sums) {
  float32x4_t before[2] = {}, after[2] = {};
  const auto take = [&](int64_t k, int chain) {
    const float32x4_t weight = vld1q_f32(p + k);
    const float32x4_t rounded = vcvt_f32_bf16(vcvt_bf16_f32(weight));
    vst1q_f32(p + k, rounded);
    before[chain] += weight, after[chain] += rounded;
  };
  int64_t k = 0;
  for (; k + 8 <= keys; k += 8) take(k, 0), take(k + 4, 1);
  for (; k < keys; k += 4) take(k, 0);
  sums[0] += vaddvq_f32(before[0] + before[1]), sums[1] += vaddvq_f32(after[0] + after[1]);
}

}  // namespace bfmmla_decode_kernels

const MatrixProducts bfmmla_decode = {bfmmla_decode_kernels::pack, bfmmla_decode_kernels::dots,
                                      bfmmla_decode_kernels::add, bfmmla_decode_kernels::round};

}  // namespace cuflash::cpu
#endif
