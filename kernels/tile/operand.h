// Mainloop operands of mma.sync, behind one interface for all four element types.
//
// One fragment reduces over kDepth elements. A is 16 x kDepth; B is loaded for two adjacent 8-column tiles at once.
//   load_a x load_b            both stored with the reduction along their rows
//   from_accumulators x load_b_transposed, load_a_transposed x load_b_transposed, load_a_paired x load_b_transposed
//                              B (and the second A) stored with the reduction across their rows
// These are the only legal pairs: for f32 and f64 the second kind reduces in the order 0 2 4 6 1 3 5 7, the order in
// which a lane holds an accumulator, so that an accumulator becomes an operand without shuffles.
#pragma once

#include "ptx/accumulator.h"
#include "ptx/matrix.h"
#include "tile/tile.h"

namespace cuflash {

// Tensor cores truncate their f32 sums towards 0 instead of rounding, so long sums drift. Sums that must be exact in
// f32 cover at most kShortSum elements on the tensor cores; these short sums are added by ordinary instructions.
constexpr int kShortSum = 32;
constexpr bool sums_drift(Element e) { return e == Element::f32; }

template <Element E>
struct Operands;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }

// The row and the column of a lane's x[0] in an accumulator.
__device__ __forceinline__ int accumulator_row() { return lane_id() / 4; }
__device__ __forceinline__ int accumulator_column() { return lane_id() % 4 * 2; }

// The row and byte that a lane addresses for the matrices of load_a and load_b; the same bytes for 16-bit and 32-bit
// elements.
__device__ __forceinline__ int a_row() { return lane_id() % 16; }
__device__ __forceinline__ int a_byte() { return lane_id() / 16 * 16; }
__device__ __forceinline__ int b_row() { return lane_id() / 16 * 8 + lane_id() % 8; }
__device__ __forceinline__ int b_byte() { return lane_id() / 8 % 2 * 16; }

template <Element E>
requires(size_of(E) == 2) struct Operands<E> {
  static constexpr int kDepth = 16;
  struct A {
    unsigned r[4];
  };
  struct B {
    unsigned r[2][2];  // [tile of 8 columns]
  };

  template <class T>
  static __device__ __forceinline__ A load_a(T tile, int row, int k) {
    A a;
    ldmatrix_x4(tile.lane_address(a_row(), a_byte(), row, k), a.r);
    return a;
  }
  template <class T>
  static __device__ __forceinline__ A load_a_paired(T tile, int row, int k) {
    return load_a(tile, row, k);
  }
  template <class T>
  static __device__ __forceinline__ A load_a_transposed(T tile, int k, int row) {
    A a;
    ldmatrix_x4_trans(tile.lane_address(b_row(), b_byte(), k, row), a.r);
    return a;
  }
  template <class T>
  static __device__ __forceinline__ B load_b(T tile, int column, int k) {
    unsigned r[4];
    ldmatrix_x4(tile.lane_address(b_row(), b_byte(), column, k), r);
    return {{{r[0], r[1]}, {r[2], r[3]}}};
  }
  template <class T>
  static __device__ __forceinline__ B load_b_transposed(T tile, int k, int column) {
    unsigned r[4];
    ldmatrix_x4_trans(tile.lane_address(a_row(), a_byte(), k, column), r);
    return {{{r[0], r[1]}, {r[2], r[3]}}};
  }
  // c: two adjacent tiles.
  static __device__ __forceinline__ A from_accumulators(const Accumulator<float>* c) {
    return {{pack<E>(c[0].x[0], c[0].x[1]), pack<E>(c[0].x[2], c[0].x[3]), pack<E>(c[1].x[0], c[1].x[1]),
             pack<E>(c[1].x[2], c[1].x[3])}};
  }
  static __device__ __forceinline__ void multiply(Accumulator<float>& c, const A& a, const B& b, int tile) {
    if constexpr (E == Element::bf16) mma_bf16(c.x, a.r, b.r[tile]);
    else mma_f16(c.x, a.r, b.r[tile]);
  }
  static __device__ __forceinline__ void multiply_mirrored(Accumulator<float>& c, const A& a, const B& b, int tile) {
    multiply(c, a, b, tile);
  }
};

// f32 as the sum of two tf32 numbers of 11 bits each, so that a product loses about 2^-21. Truncation instead of
// rounding keeps the largest floats finite.
struct SplitFloat {
  unsigned high, low;
};
__device__ __forceinline__ SplitFloat split(float x) {
  const unsigned high = __float_as_uint(x) & 0xffffe000u;
  return {high, __float_as_uint(x - __uint_as_float(high))};
}

template <>
struct Operands<Element::f32> {
  static constexpr int kDepth = 8;
  struct A {
    unsigned high[4], low[4];
  };
  struct B {
    unsigned high[2][2], low[2][2];
  };

  static __device__ __forceinline__ A split_a(float x0, float x1, float x2, float x3) {
    const SplitFloat s[4] = {split(x0), split(x1), split(x2), split(x3)};
    return {{s[0].high, s[1].high, s[2].high, s[3].high}, {s[0].low, s[1].low, s[2].low, s[3].low}};
  }
  static __device__ __forceinline__ B split_b(float x0, float x1, float x2, float x3) {
    const SplitFloat s[4] = {split(x0), split(x1), split(x2), split(x3)};
    return {{{s[0].high, s[1].high}, {s[2].high, s[3].high}}, {{s[0].low, s[1].low}, {s[2].low, s[3].low}}};
  }
  template <class T>
  static __device__ __forceinline__ A load_a(T tile, int row, int k) {
    unsigned r[4];
    ldmatrix_x4(tile.address(a_row(), 0) + a_byte() + (row * T::kStride + k) * 4, r);
    return split_a(__uint_as_float(r[0]), __uint_as_float(r[1]), __uint_as_float(r[2]), __uint_as_float(r[3]));
  }
  template <class T>
  static __device__ __forceinline__ A load_a_paired(T tile, int row, int k) {
    const float* x = tile.at(row + lane_id() / 4, k + lane_id() % 4 * 2);
    return split_a(x[0], x[8 * T::kStride], x[1], x[8 * T::kStride + 1]);
  }
  template <class T>
  static __device__ __forceinline__ A load_a_transposed(T tile, int k, int row) {
    const float* x = tile.at(k + lane_id() % 4 * 2, row + lane_id() / 4);
    return split_a(x[0], x[8], x[T::kStride], x[T::kStride + 8]);
  }
  template <class T>
  static __device__ __forceinline__ B load_b(T tile, int column, int k) {
    unsigned r[4];
    ldmatrix_x4(tile.address(b_row(), 0) + b_byte() + (column * T::kStride + k) * 4, r);
    return split_b(__uint_as_float(r[0]), __uint_as_float(r[1]), __uint_as_float(r[2]), __uint_as_float(r[3]));
  }
  template <class T>
  static __device__ __forceinline__ B load_b_transposed(T tile, int k, int column) {
    const float* x = tile.at(k + lane_id() % 4 * 2, column + lane_id() / 4);
    return split_b(x[0], x[T::kStride], x[8], x[T::kStride + 8]);
  }
  static __device__ __forceinline__ A from_accumulators(const Accumulator<float>* c) {
    return split_a(c->x[0], c->x[2], c->x[1], c->x[3]);
  }
  // Small products come first: added to the large one they would be lost.
  static __device__ __forceinline__ void multiply(Accumulator<float>& c, const A& a, const B& b, int tile) {
    mma_tf32(c.x, a.low, b.high[tile]);
    mma_tf32(c.x, a.high, b.low[tile]);
    mma_tf32(c.x, a.high, b.high[tile]);
  }
  // Bitwise the same as multiply with a and b exchanged.
  static __device__ __forceinline__ void multiply_mirrored(Accumulator<float>& c, const A& a, const B& b, int tile) {
    mma_tf32(c.x, a.high, b.low[tile]);
    mma_tf32(c.x, a.low, b.high[tile]);
    mma_tf32(c.x, a.high, b.high[tile]);
  }
};

template <>
struct Operands<Element::f64> {
  static constexpr int kDepth = 8;
  struct A {
    double r[2][2];  // [rows r, r + 8][step of four]
  };
  struct B {
    double r[2][2];  // [tile of 8 columns][step of four]
  };

  template <class T>
  static __device__ __forceinline__ A load_a(T tile, int row, int k) {
    const double* x = tile.at(row + lane_id() / 4, k + lane_id() % 4);
    return {{{x[0], x[4]}, {x[8 * T::kStride], x[8 * T::kStride + 4]}}};
  }
  template <class T>
  static __device__ __forceinline__ A load_a_paired(T tile, int row, int k) {
    const double* x = tile.at(row + lane_id() / 4, k + lane_id() % 4 * 2);
    return {{{x[0], x[1]}, {x[8 * T::kStride], x[8 * T::kStride + 1]}}};
  }
  template <class T>
  static __device__ __forceinline__ A load_a_transposed(T tile, int k, int row) {
    const double* x = tile.at(k + lane_id() % 4 * 2, row + lane_id() / 4);
    return {{{x[0], x[T::kStride]}, {x[8], x[T::kStride + 8]}}};
  }
  template <class T>
  static __device__ __forceinline__ B load_b(T tile, int column, int k) {
    const double* x = tile.at(column + lane_id() / 4, k + lane_id() % 4);
    return {{{x[0], x[4]}, {x[8 * T::kStride], x[8 * T::kStride + 4]}}};
  }
  template <class T>
  static __device__ __forceinline__ B load_b_transposed(T tile, int k, int column) {
    const double* x = tile.at(k + lane_id() % 4 * 2, column + lane_id() / 4);
    return {{{x[0], x[T::kStride]}, {x[8], x[T::kStride + 8]}}};
  }
  static __device__ __forceinline__ A from_accumulators(const Accumulator<double>* c) {
    return {{{c->x[0], c->x[1]}, {c->x[2], c->x[3]}}};
  }
  static __device__ __forceinline__ void multiply(Accumulator<double>& c, const A& a, const B& b, int tile) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      mma_f64(c.x[0], c.x[1], a.r[0][step], b.r[tile][step]);
      mma_f64(c.x[2], c.x[3], a.r[1][step], b.r[tile][step]);
    }
  }
  static __device__ __forceinline__ void multiply_mirrored(Accumulator<double>& c, const A& a, const B& b, int tile) {
    multiply(c, a, b, tile);
  }
};

}  // namespace cuflash
