// x86-64 with AMX: a tile instruction multiplies 16 rows x 32 depths by 32 depths x 16 lanes of bf16, or of f16 with
// AMX-FP16, and accumulates in f32. Left operands are [depth / 32][16 rows][32]; right operands hold pairs of depths,
// [depth / 2][32 lanes][2].
#if defined(__x86_64__)
#include "cpu/isa/isa.h"
#include "cpu/isa/x86_intrinsics.h"

namespace cuflash::cpu {
namespace amx {

constexpr int kVectorBytes = 64;
constexpr int kFloatRows = 8, kFloatVectors = 2;
constexpr int kDoubleRows = 8, kDoubleVectors = 2;
constexpr int kDepthAtOnce = 1, kExpAtOnce = 4;
constexpr int64_t kTileQ = 1024;
constexpr bool kFetchesAhead = false;

#include "cpu/isa/vector_kernels.h"

constexpr int kRows = 16, kLanes = V<float>::kLanes, kStep = 32;

// Every tile is 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTiles;

// What differs between the types of operands. multiply<c, a, b>: tile c += tile a * tile b.
struct Bf16Format {
  static constexpr uint16_t kExponent = 0x7f80;  // all of its bits are set in NaN and Inf
  static constexpr DType kType = DType::bf16;

  template <int c, int a, int b>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
  }
  // Rounds two vectors to nearest even and concatenates them.
  static __m512i narrow(Vec<float> low, Vec<float> high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
  // Adds both vectors of `narrowed`, which are interleaved in `pairs`. One instruction multiplies pairs by 1 and adds.
  static Vec<float> add_both(Vec<float> sums, __m512i /*narrowed*/, __m512i pairs) {
    return _mm512_dpbf16_ps(sums, (__m512bh)pairs, (__m512bh)_mm512_set1_epi16(0x3f80));
  }
  // The reference of a row's weights: they are e^(scale (s - reference)).
  static Vec<float> reference_of(Vec<float> largest, float) { return largest; }
};
struct F16Format {
  static constexpr uint16_t kExponent = 0x7c00;
  static constexpr DType kType = DType::f16;

  // tdpfp16ps, which assemblers before binutils 2.40 do not know.
  template <int c, int a, int b>
  static void multiply() {
    asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~b & 15) << 3 | 3), "i"(0xc0 | c << 3 | a));
  }
  static __m512i narrow(Vec<float> low, Vec<float> high) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, kNearest)), _mm512_cvtps_ph(high, kNearest),
                              1);
  }
  static Vec<float> add_both(Vec<float> sums, __m512i narrowed, __m512i /*pairs*/) {
    return sums + (_mm512_cvtph_ps(_mm512_castsi512_si256(narrowed)) +
                   _mm512_cvtph_ps(_mm512_extracti64x4_epi64(narrowed, 1)));
  }
  // f16 has 5 bits of exponent: with the largest weight at 2^15 instead of 1, weights down to 2^-29 of it keep all
  // digits. Where the difference is lost in the rounding of a large score, the largest weight is 1.
  static Vec<float> reference_of(Vec<float> largest, float scale) {
    const Vec<float> lower = largest - kHeadroom / scale, headroom = (largest - lower) * scale;
    return headroom <= kHeadroom * 1.01f ? lower : largest;
  }
  static constexpr float kHeadroom = 10.397f;  // just under 15 ln 2
};

// Setting up the tiles and releasing them take 250 cycles together, so both happen once for many products. Threads that
// keep tiles are slower to switch.
uint32_t begin_products() {
  _tile_loadconfig(&kTiles);
  return flush_to_zero();
}
void end_products(uint32_t before) {
  restore_control(before);
  _tile_release();
}

// 32 rows x 32 lanes; tiles 0 to 3 are the accumulators. (The intrinsics may be statements, not expressions.)
template <class Format>
inline void multiply_two_panels(int64_t steps, const Operand16* left, int64_t left_stride, const Operand16* right,
                                float* c, Into into) {
  constexpr int64_t kLine = kLanes * sizeof(float);
  float* second = c + kRows * kLanes;
  if (into == Into::add) {
    _tile_loadd(0, c, kLine);
    _tile_loadd(1, c + 16, kLine);
    _tile_loadd(2, second, kLine);
    _tile_loadd(3, second + 16, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < steps; ++s, left += kStep * kRows, right += kStep * kLanes) {
    _tile_loadd(6, right, kLine);
    _tile_loadd(4, left, kStep * sizeof(Operand16));
    _tile_loadd(7, right + 32, kLine);
    Format::template multiply<0, 4, 6>();
    _tile_loadd(5, left + left_stride, kStep * sizeof(Operand16));
    Format::template multiply<1, 4, 7>();
    Format::template multiply<2, 5, 6>();
    Format::template multiply<3, 5, 7>();
  }
  _tile_stored(0, c, kLine);
  _tile_stored(1, c + 16, kLine);
  _tile_stored(2, second, kLine);
  _tile_stored(3, second + 16, kLine);
}

template <class Format>
inline void multiply_one_panel(int64_t steps, const Operand16* left, const Operand16* right, float* c, Into into) {
  constexpr int64_t kLine = kLanes * sizeof(float);
  if (into == Into::add) {
    _tile_loadd(0, c, kLine);
    _tile_loadd(1, c + 16, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t s = 0; s < steps; ++s, left += kStep * kRows, right += kStep * kLanes) {
    _tile_loadd(4, left, kStep * sizeof(Operand16));
    _tile_loadd(6, right, kLine);
    _tile_loadd(7, right + 32, kLine);
    Format::template multiply<0, 4, 6>();
    Format::template multiply<1, 4, 7>();
  }
  _tile_stored(0, c, kLine);
  _tile_stored(1, c + 16, kLine);
}

template <class Format>
void multiply_tiles(int64_t m, int64_t depth, const Operand16* left, int64_t left_stride, const Operand16* right,
                    float* c, Into into, const Ahead&) {
  const int64_t steps = (depth + kStep - 1) / kStep;
  for (; m > kRows; m -= 2 * kRows, left += 2 * left_stride, c += 2 * kRows * kLanes)
    multiply_two_panels<Format>(steps, left, left_stride, right, c, into);
  if (m > 0) multiply_one_panel<Format>(steps, left, right, c, into);
}

template <class Format>
void rescale_and_multiply_tiles(int64_t m, int64_t depth, const Operand16* left, int64_t left_stride,
                                const Operand16* right, float* c, const float* factor) {
  for (int64_t n = 0; n < m; ++n)
    for (int half = 0; half < kLanes; half += 16) at(c + n * kLanes + half) *= at(factor + half);
  multiply_tiles<Format>(m, depth, left, left_stride, right, c, Into::add, {});
}

// The first `count` of 32 elements, followed by zeros.
inline __m512i load_part(const uint16_t* from, int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
}
inline void store(Operand16* to, __m512i x) { _mm512_store_si512(to, x); }

template <class Format>
inline bool is_finite_row(const uint16_t* row, int64_t dim) {
  const __m512i exponent = _mm512_set1_epi16(Format::kExponent);
  __mmask32 nonfinite = 0;
  for (int64_t d = 0; d < dim; d += 32)
    nonfinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(load_part(row + d, dim - d), exponent), exponent);
  return nonfinite == 0;
}

// 32 rows of the caller's tensor; null beyond its last row.
struct RowBlock {
  const uint16_t* row[32];
  int64_t dim;

  RowBlock(const Source& source, int64_t first) : dim(source.dim) {
    for (int n = 0; n < 32; ++n)
      row[n] = first + n < source.count
                   ? static_cast<const uint16_t*>(source.data) + source.offset + (first + n) * source.row_stride
                   : nullptr;
  }
  // 32 elements starting at d, 0 beyond the end.
  __m512i part(int n, int64_t d) const { return row[n] ? load_part(row[n] + d, dim - d) : _mm512_setzero_si512(); }

  // Drops rows with NaN or Inf and lists their numbers; returns how many there were.
  template <class Format>
  int64_t drop_nonfinite(int64_t first, int32_t* nonfinite) {
    int64_t count = 0;
    for (int n = 0; n < 32; ++n) {
      if (!row[n] || is_finite_row<Format>(row[n], dim)) continue;
      row[n] = nullptr;
      nonfinite[count++] = static_cast<int32_t>(first + n);
    }
    return count;
  }
};

// Two rows of 32, interleaved as pairs: columns 0 to 15 and 16 to 31.
struct Pairs {
  __m512i low, high;
  Pairs(__m512i even, __m512i odd) {
    low = join(_mm512_castsi512_si256(even), _mm512_castsi512_si256(odd));
    high = join(_mm512_extracti64x4_epi64(even, 1), _mm512_extracti64x4_epi64(odd, 1));
  }
  static __m512i join(__m256i even, __m256i odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
  }
};

void left_by_dim(const RowBlock& rows, int64_t steps, Operand16* to) {
  for (int n = 0; n < 32; ++n)
    for (int64_t s = 0; s < steps; ++s)
      store(to + ((n / kRows * steps + s) * kRows + n % kRows) * kStep, rows.part(n, s * kStep));
}

void right_by_dim(const RowBlock& rows, int64_t steps, Operand16* to) {
  for (int64_t s = 0; s < steps; ++s) {
    for (int half = 0; half < 32; half += 16) {
      __m512i x[16];
      for (int n = 0; n < 16; ++n) x[n] = rows.part(half + n, s * kStep);
      transpose_words(x);
      for (int n = 0; n < 16; ++n) store(to + (s * 16 + n) * 2 * kLanes + 2 * half, x[n]);
    }
  }
}

// to: panel of the first dims; the next panel is a whole capacity further. Interleaving two rows within quarters of a
// register takes one instruction; of the columns 8 q to 8 q + 7 of quarter q it leaves four in each of two registers.
void left_by_row(const RowBlock& rows, int64_t capacity, Operand16* to) {
  const int64_t padded = (rows.dim + kRows - 1) / kRows * kRows;
  for (int64_t d = 0; d < rows.dim; d += 32) {
    __m512i pairs[2][16];
    for (int n = 0; n < 16; ++n) {
      const __m512i even = rows.part(2 * n, d), odd = rows.part(2 * n + 1, d);
      pairs[0][n] = _mm512_unpacklo_epi16(even, odd);
      pairs[1][n] = _mm512_unpackhi_epi16(even, odd);
    }
    for (int half = 0; half < 2; ++half) {
      transpose_words(pairs[half]);
      for (int n = 0; n < 16; ++n) {
        const int64_t column = d + n / 4 * 8 + half * 4 + n % 4;
        if (column < padded) store(to + column / kRows * kRows * capacity + column % kRows * kStep, pairs[half][n]);
      }
    }
  }
}

void right_by_row(const RowBlock& rows, int64_t capacity, Operand16* to) {
  for (int64_t d = 0; d < rows.dim; d += kLanes) {
    for (int n = 0; n < 16; ++n) {
      const Pairs pairs(rows.part(2 * n, d), rows.part(2 * n + 1, d));
      store(to + d * capacity + n * 2 * kLanes, pairs.low);
      store(to + d * capacity + n * 2 * kLanes + 32, pairs.high);
    }
  }
}

template <class Format>
int64_t pack_halves(const Source& source, Side side, Operand16* by_dim, Operand16* by_row, int64_t capacity,
                    int32_t* nonfinite, float*) {
  const int64_t steps = (source.dim + kStep - 1) / kStep;
  const bool is_left = side == Side::left;
  int64_t nonfinite_rows = 0;
  for (int64_t first = 0; first < source.count; first += 32) {
    RowBlock rows(source, first);
    if (by_dim) (is_left ? left_by_dim : right_by_dim)(rows, steps, by_dim + first * steps * kStep);
    if (!by_row) continue;
    nonfinite_rows += rows.template drop_nonfinite<Format>(first, nonfinite + nonfinite_rows);
    (is_left ? left_by_row : right_by_row)(rows, capacity, by_row + first * (is_left ? kRows : kLanes));
  }
  return nonfinite_rows;
}

// The order in which a permutation makes pairs of the elements of both halves.
inline __m512i interleaved_halves() {
  alignas(64) uint16_t order[32];
  for (int n = 0; n < 32; ++n) order[n] = static_cast<uint16_t>(n / 2 + n % 2 * 16);
  return _mm512_load_si512(order);
}

// The sums after rounding come from the operand itself.
template <class Format>
void to_right(int64_t keys, const float* w, Operand16* right, const RoundedSums<float>* sums) {
  const __m512i interleaved = interleaved_halves();
  alignas(64) const float zeros[kLanes] = {};
  Vec<float> before[2] = {}, after[2] = {};
  for (int64_t k = 0; k < (keys + kStep - 1) / kStep * kStep; k += 2, right += 2 * kLanes) {
    const float* even = k < keys ? w + k * kLanes : zeros;
    const float* odd = k + 1 < keys ? w + (k + 1) * kLanes : zeros;
    for (int half = 0; half < 2; ++half, even += 16, odd += 16) {
      const __m512i narrowed = Format::narrow(at(even), at(odd));
      const __m512i pairs = _mm512_permutexvar_epi16(interleaved, narrowed);
      store(right + 32 * half, pairs);
      before[half] += at(even) + at(odd);
      after[half] = Format::add_both(after[half], narrowed, pairs);
    }
  }
  if (!sums) return;
  for (int half = 0; half < 2; ++half) {
    at(sums->before + 16 * half) += before[half];
    at(sums->after + 16 * half) += after[half];
  }
}

template <class Format, bool kDrop>
void softmax_and_drop(int64_t keys, const float* s, float scale, const float* keep, float* m, float* l, float* o,
                      int64_t dim, Operand16* right, const RoundedSums<float>& sums) {
  Vec<float> top[4] = {at(m), at(m + 16), at(m), at(m + 16)};  // two chains, because a maximum takes several cycles
  for (int64_t k = 0; k + 2 <= keys; k += 2)
    for (int n = 0; n < 4; ++n) top[n] = larger(at(s + k * kLanes + n * 16), top[n]);
  if (keys % 2)
    for (int n = 0; n < 2; ++n) top[n] = larger(at(s + (keys - 1) * kLanes + n * 16), top[n]);

  const __m512i interleaved = interleaved_halves();
  const int64_t padded = (keys + kStep - 1) / kStep * kStep;
  for (int half = 0; half < 2; ++half) {
    const Vec<float> old = at(m + 16 * half);
    const Vec<float> now = larger(Format::reference_of(larger(top[half], top[half + 2]), scale), old);
    // If no key has been seen yet, subtract 0, because subtracting -inf would give NaN.
    const Vec<float> reference = now == -V<float>::kInfinity ? Vec<float>{} : now;
    const float* from = s + 16 * half;
    Operand16* to = right + 32 * half;
    const float* kept = kDrop ? keep + 16 * half : nullptr;
    Vec<float> all[2] = {}, before[2] = {};  // all: what is dropped, too
    Vec<float> after[2] = {};
    const auto drop = [&](Vec<float>& p, int chain) {
      all[chain] += p;
      p *= at(kept);
      kept += kLanes;
    };
    const auto put = [&](int chain, Vec<float> even, Vec<float> odd) {
      const __m512i narrowed = Format::narrow(even, odd);
      const __m512i pairs = _mm512_permutexvar_epi16(interleaved, narrowed);
      before[chain] += even + odd;
      after[chain] = Format::add_both(after[chain], narrowed, pairs);
      store(to, pairs);
      to += 2 * kLanes;
    };
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4, from += 4 * kLanes) {
      Vec<float> p[4];
      for (int n = 0; n < 4; ++n) p[n] = at(from + n * kLanes) - reference;
      exp_each_for_bf16(p, scale);
      for (int n = 0; kDrop && n < 4; ++n) drop(p[n], n % 2);
      put(0, p[0], p[1]);
      put(1, p[2], p[3]);
    }
    for (; k < padded; k += 2, from += 2 * kLanes) {
      Vec<float> p[2] = {};
      for (int n = 0; n < 2; ++n)
        p[n] = k + n < keys ? at(from + n * kLanes) - reference : Vec<float>{} - V<float>::kInfinity;
      exp_each_for_bf16(p, scale);
      for (int n = 0; kDrop && n < 2 && k + n < keys; ++n) drop(p[n], n);
      put(0, p[0], p[1]);
    }
    at(m + 16 * half) = now;
    if (differ(now, old)) {
      Vec<float> shrink[1] = {old - reference};
      exp_each(shrink, scale);
      at(l + 16 * half) *= shrink[0];
      for (int64_t d = 0; d < dim; ++d) at(o + d * kLanes + 16 * half) *= shrink[0];
    }
    at(l + 16 * half) += kDrop ? all[0] + all[1] : before[0] + before[1];
    at(sums.before + 16 * half) += before[0] + before[1];
    at(sums.after + 16 * half) += after[0] + after[1];
  }
}

template <class Format>
void softmax_to_right(int64_t keys, const float* s, float scale, const float* keep, float* m, float* l, float* o,
                      int64_t dim, Operand16* right, const RoundedSums<float>& sums) {
  (keep ? softmax_and_drop<Format, true> : softmax_and_drop<Format, false>)(keys, s, scale, keep, m, l, o, dim, right,
                                                                            sums);
}

template <class Format>
void to_left(int64_t keys, const float* w, Operand16* left, int64_t capacity, int64_t first) {
  for (int64_t k = 0; k < keys; ++k, w += kLanes)
    store(left + k / kRows * kRows * capacity + first * kRows + k % kRows * kStep, Format::narrow(at(w), at(w + 16)));
}

// 32 dims of 16 lanes at a time: pairs of dims are rounded to words of two, and the words transposed.
template <class Format>
void unpack_halves(int64_t dim, int64_t count, const float* panel, const float* factor, uint16_t* rows,
                   int64_t stride) {
  const __m512i interleaved = interleaved_halves();
  for (int64_t lane = 0; lane < count; lane += 16) {
    const Vec<float> lane_factor = at(factor + lane);
    const auto column = [&](int64_t d) { return d < dim ? at(panel + d * kLanes + lane) * lane_factor : Vec<float>{}; };
    for (int64_t d = 0; d < dim; d += 32) {
      __m512i x[16];
      for (int n = 0; n < 16; ++n)
        x[n] = _mm512_permutexvar_epi16(interleaved, Format::narrow(column(d + 2 * n), column(d + 2 * n + 1)));
      transpose_words(x);
      const auto mask = static_cast<__mmask32>(dim - d >= 32 ? ~0u : (1u << (dim - d)) - 1);
      for (int n = 0; n < 16 && lane + n < count; ++n)
        _mm512_mask_storeu_epi16(rows + (lane + n) * stride + d, mask, x[n]);
    }
  }
}

template <class Format>
void unpack_rows_or_halves(int64_t dim, int64_t count, const float* panel, const float* factor, const Destination& to,
                           float* staging) {
  if (to.dtype == Format::kType)
    unpack_halves<Format>(dim, count, panel, factor, static_cast<uint16_t*>(to.data) + to.offset, to.row_stride);
  else unpack_rows(dim, count, panel, factor, to, staging);
}

template <class Format>
constexpr Kernels<float, Operand16> matrix_table() {
  Kernels<float, Operand16> t = table_of_scores<float, Operand16>();
  t.rows = kRows, t.step = kStep;
  t.multiply = multiply_tiles<Format>, t.rescale_and_multiply = rescale_and_multiply_tiles<Format>;
  t.pack = pack_halves<Format>, t.to_right = to_right<Format>, t.to_left = to_left<Format>;
  t.softmax_to_right = softmax_to_right<Format>, t.unpack_rows = unpack_rows_or_halves<Format>;
  t.begin_products = begin_products, t.end_products = end_products;
  return t;
}

}  // namespace amx

const Kernels<float, Operand16> amx_bf16 = amx::matrix_table<amx::Bf16Format>();
const Kernels<float, Operand16> amx_f16 = amx::matrix_table<amx::F16Format>();

}  // namespace cuflash::cpu
#endif
