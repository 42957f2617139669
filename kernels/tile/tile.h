// A matrix in shared memory with padded rows, as mma.sync operands are read from it, and its loads from and stores to
// global memory: prologue, mainloop and epilogue of the portable kernels.
#pragma once

#include "ptx/cp_async.h"
#include "ptx/special_registers.h"
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
  // Memory of eight elements of a row; column is a multiple of 8.
  __device__ __forceinline__ void* piece_memory(int row, int column) const { return at(row, column); }
  // Address of a lane's part of the matrix at (row, column): the lane's row and byte inside it.
  __device__ __forceinline__ unsigned lane_address(int lane_row, int lane_byte, int row, int column) const {
    return address(lane_row, 0) + static_cast<unsigned>(lane_byte + (row * kStride + column) * kSize);
  }
};

// Which rows of a tile exist: all of them, or those in the caller's range.
enum class RowsOf { whole_tile, part };

// A load can be issued in slices between other work: in one burst it would block later reads of shared memory.
struct Slice {
  int number = 0, of = 1;
};

// Threads that share a row of `chunks` chunks evenly.
constexpr int lanes_of_chunks(int chunks, int threads) {
  int lanes = chunks < threads ? chunks : threads;
  while (chunks % lanes != 0) --lanes;
  return lanes;
}

// Loads rows [first, first + kRows) of a head whose row 0 is at `head`. Rows outside of [begin, end) and columns from
// `dim` on become zero, so that nothing stored there is ever multiplied. Except with kCopyElements, the caller commits
// and waits. thread: pass new_thread_id() to keep no registers for what is derived from it. No branch depends on the
// rows, so the compiler may move the cp.async instructions between the products of the previous tile.
template <int kCopy, int kThreads, RowsOf kExisting = RowsOf::part, Element E, int kRows, int kColumns>
__device__ __forceinline__ void load_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, const void* head,
                                          int first, int begin, int end, int dim,
                                          int thread = static_cast<int>(threadIdx.x), Slice slice = {}) {
  if constexpr (kCopy != kCopyElements) {
    // A thread keeps its column (or every kLanes-th chunk of very wide rows) and steps through the rows. Threads left
    // over because the chunks of a row do not divide them are idle.
    constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
    constexpr int kLanes = lanes_of_chunks(kChunks, kThreads), kColumnSteps = kChunks / kLanes;
    constexpr int kRowStep = kThreads / kLanes, kRowSteps = (kRows + kRowStep - 1) / kRowStep;
    const int row = thread / kLanes, column = thread % kLanes * kPerChunk;
    const auto* from = static_cast<const StoredOf<E>*>(head) + (first + row) * rows.row_stride + column;
#pragma unroll
    for (int n = 0; n < kRowSteps * kColumnSteps; ++n) {
      if (n % slice.of != slice.number) continue;
      const int r = row + n / kColumnSteps * kRowStep, c = column + n % kColumnSteps * (kLanes * kPerChunk);
      if ((kThreads % kLanes != 0 && row >= kRowStep) || (kRows % kRowStep != 0 && r >= kRows)) continue;
      const auto* source = from + n / kColumnSteps * (kRowStep * rows.row_stride) + (c - column);
      const int bytes = kCopy == kCopyWhole ? 16 : max(0, min(kPerChunk, dim - c)) * size_of(E);
      const bool exists = kExisting == RowsOf::whole_tile || (first + r >= begin && first + r < end);
      if constexpr (kCopy == kCopyWhole && kExisting == RowsOf::whole_tile) cp_async_16(tile.address(r, c), source);
      else cp_async_16(tile.address(r, c), source, exists ? bytes : 0);  // cp.async of 0 bytes reads nothing
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

// Stores the first `count` rows of the tile to rows [first, first + count) of one head, in 16-byte pieces if aligned.
template <int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ void store_tile(Tile<E, kRows, kColumns> tile, const RowsView& rows, int64 head_offset,
                                           int64 first, int count, int dim) {
  const int thread = static_cast<int>(threadIdx.x);
  auto* base = static_cast<StoredOf<E>*>(rows.data) + head_offset + first * rows.row_stride;
  constexpr int kPerChunk = 16 / size_of(E);
  const bool whole_chunks =
      reinterpret_cast<uint64>(base) % 16 == 0 && rows.row_stride % kPerChunk == 0 && dim % kPerChunk == 0;
  if (whole_chunks) {
    // Threads step through the rows as in load_tile. Up to four chunks are read before the first of them is written.
    constexpr int kChunks = kColumns / kPerChunk, kLanes = lanes_of_chunks(kChunks, kThreads);
    constexpr int kColumnSteps = kChunks / kLanes, kRowStep = kThreads / kLanes;
    constexpr int kSteps = (kRows + kRowStep - 1) / kRowStep * kColumnSteps, kAtOnce = kSteps < 4 ? kSteps : 4;
    const int row = thread / kLanes, column = thread % kLanes * kPerChunk;
    if (kThreads % kLanes != 0 && row >= kRowStep) return;
    auto* to = base + row * rows.row_stride + column;
#pragma unroll
    for (int step = 0; step < kSteps; step += kAtOnce) {
      uint4 chunk[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int r = row + (step + n) / kColumnSteps * kRowStep;
        const int c = column + (step + n) % kColumnSteps * (kLanes * kPerChunk);
        if (kRows % kRowStep == 0 || r < kRows) chunk[n] = *reinterpret_cast<const uint4*>(tile.at(r, c));
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int down = (step + n) / kColumnSteps * kRowStep;
        const int right = (step + n) % kColumnSteps * (kLanes * kPerChunk);
        if (step + n < kSteps && row + down < count && column + right < dim)
          *reinterpret_cast<uint4*>(to + down * rows.row_stride + right) = chunk[n];
      }
    }
  } else {
    for (int n = thread; n < kRows * kColumns; n += kThreads) {
      const int row = n / kColumns, column = n % kColumns;
      if (row < count && column < dim) base[row * rows.row_stride + column] = *tile.at(row, column);
    }
  }
}

}  // namespace cuflash
