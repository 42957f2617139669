// A matrix in shared memory with padded rows, and its traffic with global memory.
#pragma once

#include "ptx/copy.h"
#include "tile/element.h"

namespace cuflash {

__device__ __forceinline__ int thread_id() { return static_cast<int>(threadIdx.x); }

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

// Which rows of a tile exist: all of them, or those that the caller names.
enum class RowsOf { whole_tile, part };

// A copy can be issued in slices between other work: in one burst it would block the reads of shared memory behind it.
struct Slice {
  int number = 0, of = 1;
};

// Rows [first, first + kRows) of a head whose row 0 lies at `head` come into the tile; what is outside of [begin, end) or beyond `dim` columns
// becomes zero, so that nothing that lies there in global memory is ever multiplied. But for kCopyElements the caller
// commits and waits. `thread` is the number of this one; a caller who wants no register kept for what follows from it
// reads it anew. No branch depends on the rows: the copies may then move between the products of the tile before.
template <int kCopy, int kThreads, RowsOf kExisting = RowsOf::part, Element E, int kRows, int kColumns>
__device__ __forceinline__ void load_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, const void* head,
                                          int first, int begin, int end, int dim,
                                          int thread = static_cast<int>(threadIdx.x), Slice slice = {}) {
  if constexpr (kCopy != kCopyElements) {
    constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
    // Where the chunks of a row divide the threads, a thread keeps its column and steps through the rows.
    constexpr bool kKeepsColumn = kThreads % kChunks == 0;
    constexpr int kRowStep = kKeepsColumn ? kThreads / kChunks : 0;
    const int row = kKeepsColumn ? thread / kChunks : 0, column = thread % kChunks * kPerChunk;
    const auto* row_zero = static_cast<const StoredOf<E>*>(head);
    const auto* from = row_zero + (first + row) * rows.row_stride + column;
    const auto bytes_from = [&](int c) {
      return kCopy == kCopyWhole ? 16 : max(0, min(kPerChunk, dim - c)) * size_of(E);
    };
#pragma unroll
    for (int n = 0; n < (kRows * kChunks + kThreads - 1) / kThreads; ++n) {
      if (n % slice.of != slice.number) continue;
      const int chunk = thread + n * kThreads;
      if (kRows * kChunks % kThreads != 0 && chunk >= kRows * kChunks) break;
      const int r = kKeepsColumn ? row + n * kRowStep : chunk / kChunks;
      const int c = kKeepsColumn ? column : chunk % kChunks * kPerChunk;
      const auto* source =
          kKeepsColumn ? from + n * (kRowStep * rows.row_stride) : row_zero + (first + r) * rows.row_stride + c;
      const bool exists = kExisting == RowsOf::whole_tile || (first + r >= begin && first + r < end);
      if constexpr (kCopy == kCopyWhole && kExisting == RowsOf::whole_tile) copy_async_16(tile.address(r, c), source);
      else copy_async_16(tile.address(r, c), source, exists ? bytes_from(c) : 0);  // of 0 bytes none is read
    }
  } else if (slice.number == 0) {
    for (int n = thread; n < kRows * kColumns; n += kThreads) {
      const int row = first + n / kColumns, column = n % kColumns;
      const bool exists = row >= begin && row < end && column < dim;
      *tile.at(n / kColumns, column) =
          narrow<E>(exists ? load_element<E>(head, rows.element, row * rows.row_stride + column) : RealOf<E>(0));
    }
  }
}

template <int kCopy, int kThreads, RowsOf kExisting = RowsOf::part, Element E, int kRows, int kColumns>
__device__ __forceinline__ void load_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, int64 head_offset,
                                          int first, int begin, int end, int dim) {
  const void* head = static_cast<const char*>(rows.data) +
                     head_offset * (rows.element == static_cast<int>(E) ? size_of(E) : size_of(Element::f32));
  load_tile<kCopy, kThreads, kExisting>(tile, rows, head, first, begin, end, dim);
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
#pragma unroll 8
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
