// Epilogue: stores accumulator rows to global memory without shared memory. The four lanes of a row exchange words
// until each holds 16 contiguous bytes. Also writes rows to a swizzled tile for TMA stores.
#pragma once

#include "ptx/matrix.h"
#include "tile/eight.h"
#include "tile/operand.h"

namespace cuflash {

// Transposes 4x4 words within a quad. Before: word n of lane q is part q of piece n. After: part n of piece q. All four
// lanes must call it.
__device__ __forceinline__ void transpose_in_quad(unsigned (&word)[4], int q) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const bool upper = (q & step) != 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int low = step == 1 ? 2 * n : n, high = low + step;
      const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? word[low] : word[high], step);
      word[low] = upper ? received : word[low];
      word[high] = upper ? word[high] : received;
    }
  }
}

// Whether the row at `offset` can be stored in pieces of 16 bytes.
template <Element E>
__device__ __forceinline__ bool has_pieces(const RowsView& rows, int64 offset, int dim) {
  return rows.element == static_cast<int>(E) && dim % 8 == 0 && rows.row_stride % 8 == 0 &&
         on_16_bytes(static_cast<unsigned short*>(rows.data) + offset);
}

// Zeroes a row; called by its four lanes.
template <Element E>
__device__ __forceinline__ void zero_row(const RowsView& rows, int64 offset, int quarter, int dim) {
  if (has_pieces<E>(rows, offset, dim)) {
#pragma unroll 1
    for (int column = quarter * 8; column < dim; column += 32)
      *reinterpret_cast<uint4*>(static_cast<unsigned short*>(rows.data) + offset + column) = {};
    return;
  }
#pragma unroll 1
  for (int column = quarter; column < dim; column += 4)
    store_element<E>(rows.data, rows.element, offset + column, 0.0f);
}

// The factor that writes a row of zeros whatever the accumulator holds: 0, or -0 where 0 may be the scale of a
// gradient, which does not hide a NaN. Such kernels are compiled with kScaleFirst.
template <int kOptions>
struct GradientFactor {
  static constexpr bool kMayBeZero = (kOptions & kScaleFirst) != 0;
  static constexpr float kOfZeros = kMayBeZero ? -0.0f : 0.0f;

  static __device__ __forceinline__ float of_scale(float scale) { return kMayBeZero ? scale + 0.0f : scale; }
};

// Rows r and r + 8 of a lane, each multiplied by its factor.
template <Element E, int kTiles, bool kMayBeZero = false>
struct RowStore {
  const Accumulator<float> (&acc)[kTiles];
  float factor[2];
  bool written[2];
  int quarter;  // lane index within the row's quad
  int dim;      // columns of the tensor

  __device__ bool is_zeros(int r) const {
    return kMayBeZero ? __float_as_uint(factor[r]) == 0x80000000u : factor[r] == 0;
  }
  __device__ float value(int r, int n, int e) const { return is_zeros(r) ? 0.0f : acc[n].x[2 * r + e] * factor[r]; }

  __device__ void store_vectors(unsigned short* row, int r) const {
#pragma unroll
    for (int n = 0; n < kTiles; n += 4) {
      unsigned word[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) word[t] = pack<E>(value(r, n + t, 0), value(r, n + t, 1));
      transpose_in_quad(word, quarter);
      const int column = (n + quarter) * 8;
      if (written[r] && column < dim) *reinterpret_cast<uint4*>(row + column) = {word[0], word[1], word[2], word[3]};
    }
  }
  __device__ void store_elements(void* data, int element, int64 offset, int r) const {
    if (!written[r]) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = n * 8 + quarter * 2 + e;
        if (column < dim) store_element<E>(data, element, offset + column, value(r, n, e));
      }
  }
  // Writes columns [8 kFirst, 8 kEnd) to a tile of 64 rows, 16 of each warp. thread: index within the warpgroup, from
  // new_thread_id().
  template <int kFirst, int kEnd, class Tile>
  __device__ __forceinline__ void to_shared(const Tile& tile, int thread) const {
    const int row = thread / 32 * 16 + thread % 16, column = thread % 32 / 16 * 8;
#pragma unroll
    for (int n = kFirst; n < kEnd; n += 2) {
      const unsigned word[4] = {pack<E>(value(0, n, 0), value(0, n, 1)), pack<E>(value(1, n, 0), value(1, n, 1)),
                                pack<E>(value(0, n + 1, 0), value(0, n + 1, 1)),
                                pack<E>(value(1, n + 1, 0), value(1, n + 1, 1))};
      stmatrix_x4(tile.piece(row, (n - kFirst) * 8 + column), word);
    }
  }
  // Stores both rows to global memory. offset is that of the lane's first row.
  __device__ __forceinline__ void to_global(const RowsView& rows, int64 offset) const {
    const bool pieces = has_pieces<E>(rows, offset, dim);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64 at = offset + r * 8 * rows.row_stride;
      if (pieces) store_vectors(static_cast<unsigned short*>(rows.data) + at, r);
      else store_elements(rows.data, rows.element, at, r);
    }
  }
};

}  // namespace cuflash
