// The matrix product of the naive baseline: plain loops over small blocks, which compilers vectorise. A needlessly slow
// baseline would prove nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cuflash::reference {

// A view of a matrix: element (r, c) is data[r * row + c * column].
template <class Real>
struct Matrix {
  const Real* data;
  int64_t row, column;
  Matrix transposed() const { return {data, column, row}; }
};

// c [m][n], contiguous, += a [m][k] * b [k][n].
template <class Real>
void multiply_add(Matrix<Real> a, Matrix<Real> b, Real* c, int64_t m, int64_t n, int64_t k) {
  // 4 x 16 f32 sums fit the registers of NEON and AVX2; a strip of 256 x 16 of b stays in the first-level cache.
  constexpr int64_t kRows = 4, kColumns = 16, kDepth = 256;
  std::vector<Real> strip(static_cast<size_t>(kDepth * kColumns));
  for (int64_t column = 0; column < n; column += kColumns) {
    const int64_t columns = std::min(kColumns, n - column);
    for (int64_t begin = 0; begin < k; begin += kDepth) {
      const int64_t depth = std::min(kDepth, k - begin);
      for (int64_t x = 0; x < depth; ++x) {
        for (int64_t y = 0; y < columns; ++y) {
          strip[static_cast<size_t>(x * kColumns + y)] = b.data[(begin + x) * b.row + (column + y) * b.column];
        }
      }
      for (int64_t first = 0; first < m; first += kRows) {
        const int64_t rows = std::min(kRows, m - first);
        Real sum[kRows][kColumns] = {};
        const Real* from[kRows];  // rows beyond the end repeat the last one and are not stored
        for (int64_t r = 0; r < kRows; ++r)
          from[r] = a.data + (first + std::min(r, rows - 1)) * a.row + begin * a.column;
        const Real* strip_x = strip.data();
        for (int64_t x = 0; x < depth; ++x, strip_x += kColumns) {
          for (int64_t r = 0; r < kRows; ++r) {
            const Real factor = from[r][x * a.column];
            for (int64_t y = 0; y < kColumns; ++y) sum[r][y] += factor * strip_x[y];
          }
        }
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t y = 0; y < columns; ++y) c[(first + r) * n + column + y] += sum[r][y];
        }
      }
    }
  }
}

}  // namespace cuflash::reference
