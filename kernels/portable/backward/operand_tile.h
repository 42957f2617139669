// 16x8 tiles of P or dS, rounded to the operand type once: products from registers and products from shared memory then
// use the same values.
#pragma once

#include "tile/operand.h"

namespace cuflash {

// Stores two neighbouring elements of a row.
template <Element E>
__device__ __forceinline__ void store_two(StoredOf<E>* to, RealOf<E> first, RealOf<E> second) {
  if constexpr (size_of(E) == 2) *reinterpret_cast<unsigned*>(to) = pack<E>(first, second);
  else if constexpr (E == Element::f32) *reinterpret_cast<float2*>(to) = {first, second};
  else *reinterpret_cast<double2*>(to) = {first, second};
}

template <Element E>
struct OperandTile {
  Accumulator<RealOf<E>> sum;

  __device__ __forceinline__ void set(const Accumulator<RealOf<E>>& c) { sum = c; }
  // row, column: of the lane's first element in the tile.
  template <class T>
  __device__ __forceinline__ void store(T tile, int row, int column) const {
    store_two<E>(tile.at(row, column), sum.x[0], sum.x[1]);
    store_two<E>(tile.at(row + 8, column), sum.x[2], sum.x[3]);
  }
  static __device__ __forceinline__ typename Operands<E>::A operand(const OperandTile* tiles) {
    return Operands<E>::from_accumulators(&tiles->sum);
  }
};

template <Element E>
requires(size_of(E) == 2) struct OperandTile<E> {
  unsigned upper, lower;  // rows r and r + 8

  __device__ __forceinline__ void set(const Accumulator<float>& c) {
    upper = pack<E>(c.x[0], c.x[1]), lower = pack<E>(c.x[2], c.x[3]);
  }
  template <class T>
  __device__ __forceinline__ void store(T tile, int row, int column) const {
    *reinterpret_cast<unsigned*>(tile.at(row, column)) = upper;
    *reinterpret_cast<unsigned*>(tile.at(row + 8, column)) = lower;
  }
  static __device__ __forceinline__ typename Operands<E>::A operand(const OperandTile* tiles) {
    return {{tiles[0].upper, tiles[0].lower, tiles[1].upper, tiles[1].lower}};
  }
};

// P or dS of a warp, with keys in rows.
template <Element E, int kKeyTiles, int kQueryTiles>
struct OperandTiles {
  OperandTile<E> tile[kKeyTiles][kQueryTiles];

  __device__ __forceinline__ explicit OperandTiles(const Accumulator<RealOf<E>> (&c)[kKeyTiles][kQueryTiles]) {
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) tile[m][n].set(c[m][n]);
  }
  template <class T>
  __device__ __forceinline__ void store(T to, int first_row, int first_column) const {
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n)
        tile[m][n].store(to, first_row + 16 * m + accumulator_row(), first_column + 8 * n + accumulator_column());
  }
  // Step k of the reduction over queries.
  __device__ __forceinline__ typename Operands<E>::A operand(int m, int k) const {
    return OperandTile<E>::operand(&tile[m][k * Operands<E>::kDepth / 8]);
  }
};

}  // namespace cuflash
