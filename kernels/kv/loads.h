// Loads to shared memory: in the prologue queries, rotated on request; in the mainloop cached and new rows of K and V.
#pragma once

#include "kv/rotary.h"
#include "tile/tile.h"

namespace cuflash {

template <Element E>
__device__ __forceinline__ EightStored<E> stored_eight(const RealOf<E> (&x)[8]) {
  EightStored<E> eight;
#pragma unroll
  for (int n = 0; n < 8; ++n) eight.x[n] = narrow<E>(x[n]);
  return eight;
}
template <Element E, class AnyTile>
__device__ __forceinline__ void put_eight(AnyTile tile, int row, int column, const RealOf<E> (&x)[8]) {
  *static_cast<EightStored<E>*>(tile.piece_memory(row, column)) = stored_eight<E>(x);
}

// Loads the rows of a tile: queries of the heads of one group. Rows of queries that do not exist become zeros. This is
// on the critical path, so rows that need no rotation are copied as they are. kFastDecode: as in KvConfig.
template <int kThreads, Element E, int kRows, int kColumns, bool kFastDecode = false, class AnyTile>
__device__ __forceinline__ void load_queries(AnyTile tile, const KvParams& p, const CachedSequence& s,
                                             const WorkItem& item, RowRange rows) {
  const AttentionParams& a = p.attention;
  constexpr int kPieces = kColumns / 8;
#pragma unroll(kRows* kPieces > 2 * kThreads ? 4 : 1)  // with few rows, unrolling only adds code
  for (int n = static_cast<int>(threadIdx.x); n < kRows * kPieces; n += kThreads) {
    const int row = n / kPieces, d = n % kPieces * 8;
    EightStored<E> eight{};
    if (rows.first + row < rows.end) {
      const int query = query_of_row(rows.first + row, a.group), head = rows.first + row - query * a.group;
      const int64 begin = offset_of(a.q, item.b, int64{item.head_k} * a.group + head, s.q_begin + query);
      const auto* const from = static_cast<const StoredOf<E>*>(a.q.data) + begin + d;
      if constexpr (kFastDecode) {
        if (d < a.dim_qk) eight = *reinterpret_cast<const EightStored<E>*>(from);
      } else if (__builtin_expect(!p.rotary.cos && d + 8 <= a.dim_qk && on_16_bytes(from), 1)) {
        eight = *reinterpret_cast<const EightStored<E>*>(from);
      } else {
        RealOf<E> x[8];
        load_rotated_eight<E>(p.rotary, p.rotary.cos ? query_position(p.rotary, s, query) : 0, a.q.data, begin, d,
                              a.dim_qk, x);
        eight = stored_eight<E>(x);
      }
    }
    *static_cast<EightStored<E>*>(tile.piece_memory(row, d)) = eight;
  }
}

// Loads one tile of K, or of V if kValues, from the given row offsets; skips new rows. Uses cp.async except with
// kCopyElements; the caller commits and waits.
template <bool kValues, int kCopy, int kThreads, Element E, int kRows, int kColumns>
__device__ __forceinline__ void load_cached(Tile<E, kRows, kColumns> tile, const KeyOffsets* key_offsets,
                                            const void* head, int dim) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto offset = [&](int row) { return kValues ? key_offsets[row].v : key_offsets[row].k; };
  if constexpr (kCopy != kCopyElements) {
    constexpr int kPerChunk = 16 / size_of(E), kChunks = kColumns / kPerChunk;
    constexpr int kLanes = kChunks < kThreads ? kChunks : kThreads, kColumnSteps = (kChunks + kLanes - 1) / kLanes;
    constexpr int kRowStep = kThreads / kLanes;
    const int lane = thread % kLanes, first = thread / kLanes;
    if (kThreads % kLanes != 0 && first >= kRowStep) return;
#pragma unroll 4
    for (int step = 0; step < (kRows + kRowStep - 1) / kRowStep; ++step) {
      const int row = first + step * kRowStep;
      if (kRows % kRowStep != 0 && row >= kRows) continue;
      const int64 begin = offset(row);
      if (begin == kNewRow) continue;
#pragma unroll
      for (int n = 0; n < kColumnSteps; ++n) {
        const int column = (lane + n * kLanes) * kPerChunk;
        if (kChunks % kLanes != 0 && column >= kColumns) continue;
        const int bytes = kCopy == kCopyWhole ? 16 : max(0, min(kPerChunk, dim - column)) * size_of(E);
        const bool reads = begin >= 0 && bytes > 0;  // cp.async of 0 bytes reads nothing, but its address must be valid
        const auto* from = static_cast<const StoredOf<E>*>(head) + (reads ? begin + column : 0);
        cp_async_16(tile.address(row, column), from, reads ? bytes : 0);
      }
    }
  } else {
    constexpr int kPieces = kColumns / 8;
    for (int n = thread; n < kRows * kPieces; n += kThreads) {
      const int row = n / kPieces, d = n % kPieces * 8;
      const int64 begin = offset(row);
      if (begin == kNewRow) continue;
      RealOf<E> x[8] = {};
      if (begin >= 0) load_eight_of<E, E>(head, begin + d, max(0, min(8, dim - d)), x);
      put_eight<E>(tile, row, d, x);
    }
  }
}

// Loads the new rows, for which is_new(row) holds, of a tile of K, or of V if kValues, whose first key is k_first.
template <bool kValues, int kThreads, Element E, int kRows, int kColumns, class AnyTile, class IsNew>
__device__ __forceinline__ void load_new(AnyTile tile, IsNew&& is_new, const KvParams& p, const CachedSequence& s,
                                         const WorkItem& item, int k_first) {
  constexpr int kPieces = kColumns / 8;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < kRows * kPieces; n += kThreads) {
    const int row = n / kPieces, d = n % kPieces * 8;
    if (!is_new(row)) continue;
    RealOf<E> x[8];
    const int number = s.pad + k_first + row - s.old_end;
    if constexpr (kValues) load_new_value<E>(p, s, item, number, d, x);
    else load_new_key<E>(p, s, item, number, d, x);
    put_eight<E>(tile, row, d, x);
  }
}

}  // namespace cuflash
