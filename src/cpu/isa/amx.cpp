// x86-64 with AMX: a tile instruction multiplies 16 rows x 32 depths by 32 depths x 16 lanes of bf16 and accumulates in
// f32. Left operands are [depth / 32][16 rows][32]; right operands hold pairs of depths, [depth / 2][32 lanes][2].
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
inline void multiply_two_panels(int64_t steps, const Bf16* left, int64_t left_stride, const Bf16* right, float* c,
                                Into into) {
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
    _tile_loadd(4, left, kStep * sizeof(Bf16));
    _tile_loadd(7, right + 32, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, left + left_stride, kStep * sizeof(Bf16));
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, kLine);
  _tile_stored(1, c + 16, kLine);
  _tile_stored(2, second, kLine);
  _tile_stored(3, second + 16, kLine);
}

inline void multiply_one_panel(int64_t steps, const Bf16* left, const Bf16* right, float* c, Into into) {
  constexpr int64_t kLine = kLanes * sizeof(float);
  if (into == Into::add) {
    _tile_loadd(0, c, kLine);
    _tile_loadd(1, c + 16, kLine);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t s = 0; s < steps; ++s, left += kStep * kRows, right += kStep * kLanes) {
    _tile_loadd(4, left, kStep * sizeof(Bf16));
    _tile_loadd(6, right, kLine);
    _tile_loadd(7, right + 32, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c, kLine);
  _tile_stored(1, c + 16, kLine);
}

void multiply_bf16(int64_t m, int64_t depth, const Bf16* left, int64_t left_stride, const Bf16* right, float* c,
                   Into into, const Ahead&) {
  const int64_t steps = (depth + kStep - 1) / kStep;
  for (; m > kRows; m -= 2 * kRows, left += 2 * left_stride, c += 2 * kRows * kLanes)
    multiply_two_panels(steps, left, left_stride, right, c, into);
  if (m > 0) multiply_one_panel(steps, left, right, c, into);
}

void rescale_and_multiply_bf16(int64_t m, int64_t depth, const Bf16* left, int64_t left_stride, const Bf16* right,
                               float* c, const float* factor) {
  for (int64_t n = 0; n < m; ++n)
    for (int half = 0; half < kLanes; half += 16) at(c + n * kLanes + half) *= at(factor + half);
  multiply_bf16(m, depth, left, left_stride, right, c, Into::add, {});
}

// The first `count` of 32 elements, followed by zeros.
inline __m512i load_part(const uint16_t* from, int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
}
inline void store(Bf16* to, __m512i x) { _mm512_store_si512(to, x); }

inline bool is_finite_bf16(const uint16_t* row, int64_t dim) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
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
  int64_t drop_nonfinite(int64_t first, int32_t* nonfinite) {
    int64_t count = 0;
    for (int n = 0; n < 32; ++n) {
      if (!row[n] || is_finite_bf16(row[n], dim)) continue;
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

void left_by_dim(const RowBlock& rows, int64_t steps, Bf16* to) {
  for (int n = 0; n < 32; ++n)
    for (int64_t s = 0; s < steps; ++s)
      store(to + ((n / kRows * steps + s) * kRows + n % kRows) * kStep, rows.part(n, s * kStep));
}

void right_by_dim(const RowBlock& rows, int64_t steps, Bf16* to) {
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
void left_by_row(const RowBlock& rows, int64_t capacity, Bf16* to) {
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

void right_by_row(const RowBlock& rows, int64_t capacity, Bf16* to) {
  for (int64_t d = 0; d < rows.dim; d += kLanes) {
    for (int n = 0; n < 16; ++n) {
      const Pairs pairs(rows.part(2 * n, d), rows.part(2 * n + 1, d));
      store(to + d * capacity + n * 2 * kLanes, pairs.low);
      store(to + d * capacity + n * 2 * kLanes + 32, pairs.high);
    }
  }
}

int64_t pack_bf16(const Source& source, Side side, Bf16* by_dim, Bf16* by_row, int64_t capacity, int32_t* nonfinite,
                  float*) {
  const int64_t steps = (source.dim + kStep - 1) / kStep;
  const bool is_left = side == Side::left;
  int64_t nonfinite_rows = 0;
  for (int64_t first = 0; first < source.count; first += 32) {
    RowBlock rows(source, first);
    if (by_dim) (is_left ? left_by_dim : right_by_dim)(rows, steps, by_dim + first * steps * kStep);
    if (!by_row) continue;
    nonfinite_rows += rows.drop_nonfinite(first, nonfinite + nonfinite_rows);
    (is_left ? left_by_row : right_by_row)(rows, capacity, by_row + first * (is_left ? kRows : kLanes));
  }
  return nonfinite_rows;
}

// Two vectors of floats, rounded to nearest even and concatenated.
inline __m512i narrow(const float* low, const float* high) {
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(high), _mm512_load_ps(low));
}

// The order in which a permutation makes pairs of the elements of both halves.
inline __m512i interleaved_halves() {
  alignas(64) uint16_t order[32];
  for (int n = 0; n < 32; ++n) order[n] = static_cast<uint16_t>(n / 2 + n % 2 * 16);
  return _mm512_load_si512(order);
}

// The sums after rounding come from the operand itself: one instruction multiplies a pair of keys by 1 and adds them.
void to_right(int64_t keys, const float* w, Bf16* right, const RoundedSums<float>* sums) {
  const __m512i interleaved = interleaved_halves();
  alignas(64) const float zeros[kLanes] = {};
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 before[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, after[2] = {before[0], before[1]};
  for (int64_t k = 0; k < (keys + kStep - 1) / kStep * kStep; k += 2, right += 2 * kLanes) {
    const float* even = k < keys ? w + k * kLanes : zeros;
    const float* odd = k + 1 < keys ? w + (k + 1) * kLanes : zeros;
    for (int half = 0; half < 2; ++half, even += 16, odd += 16) {
      const __m512i pairs = _mm512_permutexvar_epi16(interleaved, narrow(even, odd));
      store(right + 32 * half, pairs);
      before[half] += _mm512_load_ps(even) + _mm512_load_ps(odd);
      after[half] = _mm512_dpbf16_ps(after[half], (__m512bh)pairs, ones);
    }
  }
  if (!sums) return;
  for (int half = 0; half < 2; ++half) {
    at(sums->before + 16 * half) += before[half];
    at(sums->after + 16 * half) += after[half];
  }
}

template <bool kDrop>
void softmax_and_drop(int64_t keys, const float* s, float scale, const float* keep, float* m, float* l, float* o,
                      int64_t dim, Bf16* right, const RoundedSums<float>& sums) {
  Vec<float> top[4] = {at(m), at(m + 16), at(m), at(m + 16)};  // two chains, because a maximum takes several cycles
  for (int64_t k = 0; k + 2 <= keys; k += 2)
    for (int n = 0; n < 4; ++n) top[n] = larger(at(s + k * kLanes + n * 16), top[n]);
  if (keys % 2)
    for (int n = 0; n < 2; ++n) top[n] = larger(at(s + (keys - 1) * kLanes + n * 16), top[n]);

  const __m512i interleaved = interleaved_halves();
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  const int64_t padded = (keys + kStep - 1) / kStep * kStep;
  for (int half = 0; half < 2; ++half) {
    const Vec<float> now = larger(top[half], top[half + 2]), old = at(m + 16 * half);
    // If no key has been seen yet, subtract 0, because subtracting -inf would give NaN.
    const Vec<float> reference = now == -V<float>::kInfinity ? Vec<float>{} : now;
    const float* from = s + 16 * half;
    Bf16* to = right + 32 * half;
    const float* kept = kDrop ? keep + 16 * half : nullptr;
    Vec<float> all[2] = {}, before[2] = {};  // all: what is dropped, too
    __m512 after[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const auto drop = [&](Vec<float>& p, int chain) {
      all[chain] += p;
      p *= at(kept);
      kept += kLanes;
    };
    const auto put = [&](int chain, Vec<float> even, Vec<float> odd) {
      const __m512i pairs = _mm512_permutexvar_epi16(interleaved, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
      before[chain] += even + odd;
      after[chain] = _mm512_dpbf16_ps(after[chain], (__m512bh)pairs, ones);
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
    at(sums.after + 16 * half) += (Vec<float>)(after[0] + after[1]);
  }
}

void softmax_to_right(int64_t keys, const float* s, float scale, const float* keep, float* m, float* l, float* o,
                      int64_t dim, Bf16* right, const RoundedSums<float>& sums) {
  (keep ? softmax_and_drop<true> : softmax_and_drop<false>)(keys, s, scale, keep, m, l, o, dim, right, sums);
}

void to_left_bf16(int64_t keys, const float* w, Bf16* left, int64_t capacity, int64_t first) {
  for (int64_t k = 0; k < keys; ++k, w += kLanes)
    store(left + k / kRows * kRows * capacity + first * kRows + k % kRows * kStep, narrow(w, w + 16));
}

// 32 dims of 16 lanes at a time: pairs of dims are rounded to words of bf16, and the words transposed.
void unpack_bf16(int64_t dim, int64_t count, const float* panel, const float* factor, uint16_t* rows, int64_t stride) {
  const __m512i interleaved = interleaved_halves();
  for (int64_t lane = 0; lane < count; lane += 16) {
    const Vec<float> lane_factor = at(factor + lane);
    const auto column = [&](int64_t d) { return d < dim ? at(panel + d * kLanes + lane) * lane_factor : Vec<float>{}; };
    for (int64_t d = 0; d < dim; d += 32) {
      __m512i x[16];
      for (int n = 0; n < 16; ++n)
        x[n] = _mm512_permutexvar_epi16(interleaved,
                                        (__m512i)_mm512_cvtne2ps_pbh(column(d + 2 * n + 1), column(d + 2 * n)));
      transpose_words(x);
      const auto mask = static_cast<__mmask32>(dim - d >= 32 ? ~0u : (1u << (dim - d)) - 1);
      for (int n = 0; n < 16 && lane + n < count; ++n)
        _mm512_mask_storeu_epi16(rows + (lane + n) * stride + d, mask, x[n]);
    }
  }
}

void unpack_rows_bf16(int64_t dim, int64_t count, const float* panel, const float* factor, const Destination& to,
                      float* staging) {
  if (to.dtype == DType::bf16)
    unpack_bf16(dim, count, panel, factor, static_cast<uint16_t*>(to.data) + to.offset, to.row_stride);
  else unpack_rows(dim, count, panel, factor, to, staging);
}

constexpr Kernels<float, Bf16> bf16_table() {
  Kernels<float, Bf16> t = table_of_scores<float, Bf16>();
  t.rows = kRows, t.step = kStep;
  t.multiply = multiply_bf16, t.rescale_and_multiply = rescale_and_multiply_bf16;
  t.pack = pack_bf16, t.to_right = to_right, t.to_left = to_left_bf16;
  t.softmax_to_right = softmax_to_right, t.unpack_rows = unpack_rows_bf16;
  t.begin_products = begin_products, t.end_products = end_products;
  return t;
}

}  // namespace amx

const Kernels<float, Bf16> amx_bf16 = amx::bf16_table();

}  // namespace cuflash::cpu
#endif
