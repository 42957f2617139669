// A matrix in shared memory with padded rows, and its traffic with global memory.
#pragma once

#include "ptx/copy.h"
#include "tile/element.h"

namespace cuflash {

template <Element E, int kRows, int kColumns>
struct Tile {
  static constexpr Element kElement = E;
  static constexpr int kSize = size_of(E);
  static constexpr int kStride = row_stride(E, kColumns);  // elements
  static constexpr int kBytes = tile_bytes(E, kRows, kColumns);

  unsigned char* memory;

  __device__ __forceinline__ StoredOf<E>* at(int row, int column) const {
    return reinterpret_cast<StoredOf<E>*>(memory) + row * kStride + column;
  }
  __device__ __forceinline__ unsigned address(int row, int column) const {
    return shared_address(memory) + static_cast<unsigned>((row * kStride + column) * kSize);
  }
};

// Rows [first, first + kRows) of one head come into the tile; what is outside of [begin, end) or beyond `dim` columns
// becomes zero, so that nothing that lies there in global memory is ever multiplied. `row_zero` is the address of row 0.
// With kCopyVectors the caller commits and waits.
template <int kCopy, int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ void load_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, int64 head_offset,
                                          int64 first, int64 begin, int64 end, int dim) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kCopy == kCopyVectors) {
    constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
    const auto* base = static_cast<const StoredOf<E>*>(rows.data) + head_offset;
#pragma unroll
    for (int n = 0; n < (kRows * kChunks + kThreads - 1) / kThreads; ++n) {
      // Where a row's chunks divide the threads, a thread keeps its column and the compiler its address.
      constexpr bool kAligned = kThreads % kChunks == 0;
      const int chunk = thread + n * kThreads;
      const int row = kAligned ? thread / kChunks + n * (kThreads / kChunks) : chunk / kChunks;
      const int column = (kAligned ? thread % kChunks : chunk % kChunks) * kPerChunk;
      if (kRows * kChunks % kThreads != 0 && chunk >= kRows * kChunks) break;
      const int64 source_row = first + row;
      const int left = min(kPerChunk, dim - column);
      const bool exists = source_row >= begin && source_row < end && left > 0;
      const auto* source = exists ? base + source_row * rows.row_stride + column : base;
      copy_async_16(tile.address(row, column), source, exists ? left * size_of(E) : 0);
    }
  } else {
    using Real = RealOf<E>;
    for (int n = thread; n < kRows * kColumns; n += kThreads) {
      const int row = n / kColumns, column = n % kColumns;
      const int64 source_row = first + row;
      const bool exists = source_row >= begin && source_row < end && column < dim;
      const int64 index = head_offset + source_row * rows.row_stride + column;
      *tile.at(row, column) = narrow<E>(exists ? load_element<Real>(rows.data, rows.element, index) : Real(0));
    }
  }
}

// The first `count` rows of the tile go to rows [first, first + count) of one head, in 16-byte pieces where they fit.
template <int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ void store_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, int64 head_offset,
                                           int64 first, int count, int dim) {
  const int thread = static_cast<int>(threadIdx.x);
  auto* base = static_cast<StoredOf<E>*>(rows.data) + head_offset + first * rows.row_stride;
  constexpr int kPerChunk = 16 / size_of(E);
  const bool whole_chunks = reinterpret_cast<uint64>(base) % 16 == 0 && rows.row_stride % kPerChunk == 0 &&
                            dim % kPerChunk == 0;
  if (whole_chunks) {
    constexpr int kChunks = kColumns / kPerChunk;
    for (int n = thread; n < kRows * kChunks; n += kThreads) {
      const int row = n / kChunks, column = n % kChunks * kPerChunk;
      if (row < count && column < dim)
        *reinterpret_cast<uint4*>(base + row * rows.row_stride + column) =
            *reinterpret_cast<const uint4*>(tile.at(row, column));
    }
  } else {
    for (int n = thread; n < kRows * kColumns; n += kThreads) {
      const int row = n / kColumns, column = n % kColumns;
      if (row < count && column < dim) base[row * rows.row_stride + column] = *tile.at(row, column);
    }
  }
}

}  // namespace cuflash
