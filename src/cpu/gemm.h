// The one matrix product of the CPU backend: C (+)= A^T B with both operands stored k-major, so that every load is a
// contiguous vector or a broadcast and nothing is summed across lanes.
#pragma once

#include <cstdint>

namespace cuflash::cpu {

template <class T>
struct Simd {
  typedef T Vec __attribute__((vector_size(16), may_alias));
  static constexpr int64_t kLanes = 16 / sizeof(T);
};

inline constexpr int64_t kBlockRows = 4;  // 4 rows x 4 vectors: 16 accumulators, what 32 vector registers hold with ease
template <class T>
inline constexpr int64_t kBlockColumns = 4 * Simd<T>::kLanes;

enum class Into { overwrite, add };

template <class T>
inline void gemm_block(int64_t depth, const T* a, int64_t lda, const T* b, int64_t ldb, T* c, int64_t ldc, Into into) {
  using Vec = typename Simd<T>::Vec;
  constexpr int64_t kLanes = Simd<T>::kLanes;
  Vec sum[kBlockRows][4] = {};
  for (int64_t k = 0; k < depth; ++k, a += lda, b += ldb) {
    for (int v = 0; v < 4; ++v) {
      const Vec column = *reinterpret_cast<const Vec*>(b + v * kLanes);
      for (int r = 0; r < kBlockRows; ++r) sum[r][v] += a[r] * column;
    }
  }
  for (int r = 0; r < kBlockRows; ++r) {
    for (int v = 0; v < 4; ++v) {
      Vec* out = reinterpret_cast<Vec*>(c + r * ldc + v * kLanes);
      *out = into == Into::add ? *out + sum[r][v] : sum[r][v];
    }
  }
}

// c [rows, columns] (+)= a [depth, rows]^T * b [depth, columns]. rows and columns are multiples of the block, every row
// of b and c starts on a vector boundary.
template <class T>
void gemm_tn(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t lda, const T* b, int64_t ldb, T* c,
             int64_t ldc, Into into) {
  for (int64_t n = 0; n < columns; n += kBlockColumns<T>)
    for (int64_t m = 0; m < rows; m += kBlockRows)
      gemm_block(depth, a + m, lda, b + n, ldb, c + m * ldc + n, ldc, into);
}

}  // namespace cuflash::cpu
