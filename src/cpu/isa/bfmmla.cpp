// aarch64 with the bf16 extension: BFMMLA multiplies 2 x 4 by 4 x 2 and accumulates in f32. Operands interleave 4
// depths of a row, left [depth / 4][8 rows][4] and right [depth / 4][16 lanes][4], so that a register holds two rows of
// either. Depth advances in steps of 8, because a register holds 8 elements of a row in the caller's memory.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "cpu/isa/isa.h"

namespace cuflash::cpu {
namespace bfmmla {

constexpr int kVectorBytes = 16;
constexpr int kFloatRows = 4, kFloatVectors = 4;
constexpr int kDepthAtOnce = 1, kExpAtOnce = 4;
constexpr int64_t kTileQ = 512;
constexpr bool kFetchesAhead = false;
constexpr int kDoubleRows = 2, kDoubleVectors = 8;

#include "cpu/isa/vector_kernels.h"

#include "cpu/isa/bf16_rows.h"

constexpr int kRows = 8, kLanes = V<float>::kLanes, kGroup = 4, kStep = 8;

inline bfloat16x8_t load(const Operand16* p) { return vreinterpretq_bf16_u16(vld1q_u16(&p->bits)); }
inline void store(Operand16* p, uint16x8_t x) { vst1q_u16(&p->bits, x); }

// A register holds {k0 q0, k0 q1, k1 q0, k1 q1}; two registers hold four lanes of two rows.
inline float32x4_t first_row(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
inline float32x4_t second_row(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}

// 8 rows x 8 lanes at a time: 16 accumulator registers. put(c, lane, sum) stores the sums of four lanes.
template <class Put>
inline void multiply_panels_bf16(int64_t m, int64_t depth, const Operand16* left, int64_t left_stride, const Operand16* right,
                                 float* c, Put put) {
  const int64_t whole = (depth + kStep - 1) / kStep * kStep;
  for (; m > 0; m -= kRows, left += left_stride, c += kRows * kLanes) {
    for (int half = 0; half < kLanes; half += 8) {
      float32x4_t sum[4][4];
      for (auto& row : sum)
        for (auto& block : row) block = vdupq_n_f32(0);
      const Operand16* a = left;
      const Operand16* b = right + half * kGroup;
      for (int64_t d = 0; d < whole; d += kGroup, a += kRows * kGroup, b += kLanes * kGroup) {
        bfloat16x8_t queries[4];
        for (int n = 0; n < 4; ++n) queries[n] = load(b + 8 * n);
        for (int r = 0; r < 4; ++r) {
          const bfloat16x8_t keys = load(a + 8 * r);
          for (int n = 0; n < 4; ++n) sum[r][n] = vbfmmlaq_f32(sum[r][n], keys, queries[n]);
        }
      }
      for (int r = 0; r < 4; ++r) {
        for (int n = 0; n < 4; n += 2) {
          float* even = c + 2 * r * kLanes + half + 2 * n;
          put(even, half + 2 * n, first_row(sum[r][n], sum[r][n + 1]));
          put(even + kLanes, half + 2 * n, second_row(sum[r][n], sum[r][n + 1]));
        }
      }
    }
  }
}

void multiply_bf16(int64_t m, int64_t depth, const Operand16* left, int64_t left_stride, const Operand16* right, float* c,
                   Into into, const Ahead&) {
  multiply_panels_bf16(m, depth, left, left_stride, right, c, [&](float* out, int, float32x4_t sum) {
    vst1q_f32(out, into == Into::add ? vaddq_f32(vld1q_f32(out), sum) : sum);
  });
}

void rescale_and_multiply_bf16(int64_t m, int64_t depth, const Operand16* left, int64_t left_stride, const Operand16* right,
                               float* c, const float* factor) {
  multiply_panels_bf16(m, depth, left, left_stride, right, c, [&](float* out, int lane, float32x4_t sum) {
    vst1q_f32(out, vfmaq_f32(sum, vld1q_f32(out), vld1q_f32(factor + lane)));
  });
}

// Interleaves two rows as a register holds them: 4 columns in each of two groups.
inline void pair_rows(uint16x8_t x, uint16x8_t y, Operand16* to, int64_t group_stride) {
  const uint64x2_t a = vreinterpretq_u64_u16(x), b = vreinterpretq_u64_u16(y);
  store(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
  store(to + group_stride, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
}

// to [8][4]: column n of four rows of eight.
inline void interleave(uint16x8_t a, uint16x8_t b, uint16x8_t c, uint16x8_t d, Operand16* to) {
  const uint16x8_t ac = vzip1q_u16(a, c), bd = vzip1q_u16(b, d), ac_high = vzip2q_u16(a, c), bd_high = vzip2q_u16(b, d);
  store(to, vzip1q_u16(ac, bd)), store(to + 8, vzip2q_u16(ac, bd));
  store(to + 16, vzip1q_u16(ac_high, bd_high)), store(to + 24, vzip2q_u16(ac_high, bd_high));
}

template <int kWidth>
int64_t pack_bf16_panels(const Source& source, Operand16* by_dim, Operand16* by_row, int64_t capacity, int32_t* nonfinite,
                         float* staging) {
  const int64_t padded = (source.dim + kStep - 1) / kStep * kStep;
  auto* zeros = reinterpret_cast<uint16_t*>(staging);
  for (int64_t d = 0; d < padded; ++d) zeros[d] = 0;
  int64_t nonfinite_rows = 0;
  for (int64_t first = 0; first < (source.count + kWidth - 1) / kWidth * kWidth; first += kGroup) {
    Bf16Rows<kGroup, kStep> rows(source, first, zeros + padded);
    if (by_dim) {
      Operand16* to = by_dim + first / kWidth * kWidth * padded + first % kWidth * kGroup;
      for (int64_t d = 0; d < padded; d += kStep)
        for (int n = 0; n < kGroup; n += 2)
          pair_rows(vld1q_u16(rows.row[n] + d), vld1q_u16(rows.row[n + 1] + d), to + d * kWidth + n * kGroup,
                    kWidth * kGroup);
    }
    if (!by_row || first >= (source.count + kStep - 1) / kStep * kStep) continue;
    nonfinite_rows += rows.drop_nonfinite(first, padded, zeros, nonfinite + nonfinite_rows);
    for (int64_t d = 0; d < padded; d += kStep)
      interleave(vld1q_u16(rows.row[0] + d), vld1q_u16(rows.row[1] + d), vld1q_u16(rows.row[2] + d),
                 vld1q_u16(rows.row[3] + d), by_row + (d / kWidth * capacity + first) * kWidth + d % kWidth * kGroup);
  }
  return nonfinite_rows;
}

int64_t pack_bf16(const Source& source, Side side, Operand16* by_dim, Operand16* by_row, int64_t capacity, int32_t* nonfinite,
                  float* staging) {
  return side == Side::left ? pack_bf16_panels<kRows>(source, by_dim, by_row, capacity, nonfinite, staging)
                            : pack_bf16_panels<kLanes>(source, by_dim, by_row, capacity, nonfinite, staging);
}

// Eight floats, rounded to nearest even.
inline uint16x8_t narrow(const float* from) {
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vld1q_f32(from)), vld1q_f32(from + 4)));
}

// The sums after rounding come from the operand itself: one instruction multiplies a pair of keys by 1 and adds them.
template <bool kSum>
void to_right_and_sum(int64_t keys, const float* w, Operand16* right, const RoundedSums<float>* sums) {
  uint16x8_t one_bits = vdupq_n_u16(0x3f80);
  __asm__("" : "+w"(one_bits));  // GCC 12 mistakes a bf16 constant for an f16 one
  const bfloat16x8_t ones = vreinterpretq_bf16_u16(one_bits);
  float32x4_t before[kLanes / 4], after[kLanes / 2];  // after: two lanes, two pairs of keys each
  for (auto& sum : before) sum = vdupq_n_f32(0);
  for (auto& sum : after) sum = vdupq_n_f32(0);
  for (int64_t k = 0; k < (keys + kStep - 1) / kStep * kStep; k += kGroup, right += kGroup * kLanes) {
    for (int lane = 0; lane < kLanes; lane += 8) {
      uint16x8_t row[kGroup];
      for (int n = 0; n < kGroup; ++n) row[n] = k + n < keys ? narrow(w + (k + n) * kLanes + lane) : vdupq_n_u16(0);
      interleave(row[0], row[1], row[2], row[3], right + lane * kGroup);
      if (!kSum) continue;
      for (int n = 0; n < 4; ++n)
        after[lane / 2 + n] = vbfdotq_f32(after[lane / 2 + n], load(right + lane * kGroup + 8 * n), ones);
      for (int n = 0; n < kGroup && k + n < keys; ++n)
        for (int half = 0; half < 8; half += 4)
          before[(lane + half) / 4] += vld1q_f32(w + (k + n) * kLanes + lane + half);
    }
  }
  if (!kSum) return;
  for (int lane = 0; lane < kLanes; lane += 4) {
    at(sums->before + lane) += before[lane / 4];
    at(sums->after + lane) += vpaddq_f32(after[lane / 2], after[lane / 2 + 1]);
  }
}

void to_right(int64_t keys, const float* w, Operand16* right, const RoundedSums<float>* sums) {
  sums ? to_right_and_sum<true>(keys, w, right, sums) : to_right_and_sum<false>(keys, w, right, sums);
}

void to_left_bf16(int64_t keys, const float* w, Operand16* left, int64_t capacity, int64_t first) {
  for (int64_t k = 0; k < keys; k += 2, w += 2 * kLanes) {
    Operand16* to = left + k / kRows * kRows * capacity + first * kRows + k % kRows * kGroup;
    for (int lane = 0; lane < kLanes; lane += 8)
      pair_rows(narrow(w + lane), narrow(w + kLanes + lane), to + lane * kRows, kGroup * kRows);
  }
}

constexpr Kernels<float, Operand16> bf16_table() {
  Kernels<float, Operand16> t = table_of_scores<float, Operand16>();
  t.rows = kRows, t.step = kStep;
  t.multiply = multiply_bf16, t.rescale_and_multiply = rescale_and_multiply_bf16;
  t.pack = pack_bf16, t.to_right = to_right, t.to_left = to_left_bf16;
  return t;
}

}  // namespace bfmmla

const Kernels<float, Operand16> bfmmla_bf16 = bfmmla::bf16_table();

}  // namespace cuflash::cpu
#endif
