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

// The columns that a thread copies, 16 bytes at a time. Where the chunks of a row divide the threads, a thread keeps its
// column and steps through the rows.
template <int kThreads, Element E, int kRows, int kColumns>
struct ChunkedCopy {
  static constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
  static constexpr int kSteps = (kRows * kChunks + kThreads - 1) / kThreads;
  static constexpr bool kKeepsColumn = kThreads % kChunks == 0 && kRows * kChunks % kThreads == 0;

  // Every row exists: nothing is asked but how many of the last columns do.
  static __device__ __forceinline__ void whole(Tile<E, kRows, kColumns> tile, const StoredOf<E>* source, int64 stride,
                                               int dim) {
    static_assert(kKeepsColumn);
    const int row = static_cast<int>(threadIdx.x) / kChunks,
              column = static_cast<int>(threadIdx.x) % kChunks * kPerChunk;
    const int bytes = clamped_bytes(dim - column);
    const unsigned to = tile.address(row, column);
    const StoredOf<E>* from = source + row * stride + column;
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      constexpr int kRowStep = kThreads / kChunks;
      copy_async_16(to + n * kRowStep * Tile<E, kRows, kColumns>::kStride * size_of(E), from, bytes);
      from += kRowStep * stride;
    }
  }
  // Only rows [low, high) exist.
  static __device__ __forceinline__ void part(Tile<E, kRows, kColumns> tile, const StoredOf<E>* source, int64 stride,
                                              int low, int high, int dim) {
#pragma unroll 1
    for (int chunk = static_cast<int>(threadIdx.x); chunk < kRows * kChunks; chunk += kThreads) {
      const int row = chunk / kChunks, column = chunk % kChunks * kPerChunk;
      const int bytes = row >= low && row < high ? clamped_bytes(dim - column) : 0;  // of 0 bytes none is read
      copy_async_16(tile.address(row, column), source + row * stride + column, bytes);
    }
  }
  static __device__ __forceinline__ int clamped_bytes(int elements) {
    return max(0, min(kPerChunk, elements)) * size_of(E);
  }
};

// Rows [first, first + kRows) of one head come into the tile; what is outside of [begin, end) or beyond `dim` columns
// becomes zero, so that nothing that lies there in global memory is ever multiplied. With kCopyVectors the caller commits
// and waits.
template <int kCopy, int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ void load_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, int64 head_offset,
                                          int first, int begin, int end, int dim) {
  if constexpr (kCopy == kCopyVectors) {
    using Copy = ChunkedCopy<kThreads, E, kRows, kColumns>;
    const auto* source = static_cast<const StoredOf<E>*>(rows.data) + head_offset + first * rows.row_stride;
    if constexpr (Copy::kKeepsColumn) {
      if (first >= begin && end - first >= kRows) return Copy::whole(tile, source, rows.row_stride, dim);
    }
    Copy::part(tile, source, rows.row_stride, begin - first, end - first, dim);
  } else {
    for (int n = static_cast<int>(threadIdx.x); n < kRows * kColumns; n += kThreads) {
      const int row = first + n / kColumns, column = n % kColumns;
      const bool exists = row >= begin && row < end && column < dim;
      const int64 index = head_offset + row * rows.row_stride + column;
      *tile.at(n / kColumns, column) =
          narrow<E>(exists ? load_element<E>(rows.data, rows.element, index) : RealOf<E>(0));
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
  const bool whole_chunks =
      reinterpret_cast<uint64>(base) % 16 == 0 && rows.row_stride % kPerChunk == 0 && dim % kPerChunk == 0;
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
