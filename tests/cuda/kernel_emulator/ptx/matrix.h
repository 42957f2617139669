// Host version of kernels/ptx/matrix.h: fragments in the layout of the PTX ISA, sums in double.
#pragma once

#include "ptx/cp_async.h"
#include "ptx/math.h"

namespace cuflash {

// The row addresses that the lanes pass to ldmatrix and stmatrix.
struct MatrixRows {
  unsigned address[32];

  explicit MatrixRows(unsigned mine) {
    std::memcpy(address, kernel_emulator::exchange(&mine, sizeof mine), sizeof address);
  }
  unsigned char* row(int matrix, int r) const { return memory + address[matrix * 8 + r]; }
};

inline void ldmatrix_x4(unsigned address, unsigned (&r)[4]) {
  const MatrixRows rows(address);
  const int lane = lane_number();
  for (int m = 0; m < 4; ++m) std::memcpy(&r[m], rows.row(m, lane / 4) + lane % 4 * 4, 4);
}
inline void ldmatrix_x4_trans(unsigned address, unsigned (&r)[4]) {
  const MatrixRows rows(address);
  const int lane = lane_number();
  for (int m = 0; m < 4; ++m) {
    unsigned short two[2];
    for (int n = 0; n < 2; ++n) std::memcpy(&two[n], rows.row(m, lane % 4 * 2 + n) + lane / 4 * 2, 2);
    r[m] = two[0] | static_cast<unsigned>(two[1]) << 16;
  }
}

inline void stmatrix_x4(unsigned address, const unsigned (&r)[4]) {
  const MatrixRows rows(address);
  const int lane = lane_number();
  for (int m = 0; m < 4; ++m) std::memcpy(rows.row(m, lane / 4) + lane % 4 * 4, &r[m], 4);
  kernel_emulator::exchange("", 1);
}
inline void stmatrix_x4_trans(unsigned address, const unsigned (&r)[4]) {
  const MatrixRows rows(address);
  const int lane = lane_number();
  for (int m = 0; m < 4; ++m)
    for (int n = 0; n < 2; ++n) {
      const auto one = static_cast<unsigned short>(r[m] >> 16 * n);
      std::memcpy(rows.row(m, lane % 4 * 2 + n) + lane / 4 * 2, &one, 2);
    }
  kernel_emulator::exchange("", 1);
}

struct Fragments {
  unsigned a[4], b[2];
};
// c[i] += sum over k of element_a(row, k) * element_b(k, column), for the lane's elements of the 16x8 tile.
template <class Product>
void mma_fragments(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], Product product) {
  Fragments mine;
  std::memcpy(mine.a, a, sizeof a), std::memcpy(mine.b, b, sizeof b);
  const unsigned char* all = kernel_emulator::exchange(&mine, sizeof mine);
  const int lane = lane_number();
  for (int n = 0; n < 4; ++n)
    c[n] = static_cast<float>(c[n] + product(all, lane / 4 + n / 2 * 8, lane % 4 * 2 + n % 2));
}
template <class Widen>
void mma_16bit(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], Widen widen) {
  mma_fragments(c, a, b, [&](const unsigned char* all, int row, int column) {
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      const auto of_a = of_lane<Fragments>(all, row % 8 * 4 + k % 8 / 2);
      const auto of_b = of_lane<Fragments>(all, column * 4 + k % 8 / 2);
      const unsigned x = of_a.a[row / 8 + k / 8 * 2] >> k % 2 * 16, y = of_b.b[k / 8] >> k % 2 * 16;
      sum += static_cast<double>(widen(static_cast<unsigned short>(x))) * widen(static_cast<unsigned short>(y));
    }
    return sum;
  });
}
inline void mma_f16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_16bit(c, a, b, widen_f16); }
inline void mma_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { mma_16bit(c, a, b, widen_bf16); }
inline void mma_tf32(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const auto cut = [](unsigned bits) { return static_cast<double>(same_bits<float>(bits & 0xffffe000u)); };
  mma_fragments(c, a, b, [&](const unsigned char* all, int row, int column) {
    double sum = 0;
    for (int k = 0; k < 8; ++k) {
      const auto of_a = of_lane<Fragments>(all, row % 8 * 4 + k % 4),
                 of_b = of_lane<Fragments>(all, column * 4 + k % 4);
      sum += cut(of_a.a[row / 8 + k / 4 * 2]) * cut(of_b.b[k / 4]);
    }
    return sum;
  });
}
inline void mma_f64(double& c0, double& c1, double a, double b) {
  struct Two {
    double a, b;
  } mine{a, b};
  const unsigned char* all = kernel_emulator::exchange(&mine, sizeof mine);
  const int lane = lane_number();
  for (int k = 0; k < 4; ++k) {
    const double x = of_lane<Two>(all, lane / 4 * 4 + k).a;
    c0 += x * of_lane<Two>(all, lane % 4 * 2 * 4 + k).b;
    c1 += x * of_lane<Two>(all, (lane % 4 * 2 + 1) * 4 + k).b;
  }
}

}  // namespace cuflash
