// The key tiles that a query tile visits, and the positional mask inside a tile. Tiles with a masked pair (at the
// window's edges and at the end of the sequence) are visited first and full tiles afterwards, so that each kind has its
// own loop.
#pragma once

#include "attn/sequence.h"

namespace cuflash {

struct VisitedTiles {
  int begin, full_begin, full_end, end;  // tile indices, ascending
  int num_masked;                        // tiles with a masked pair

  __device__ int count() const { return end - begin; }
  __device__ int tile(int step) const {
    const int left = full_begin - begin;
    if (step >= num_masked) return full_begin + (step - num_masked);
    return step < left ? begin + step : full_end + (step - left);
  }
};

template <int kTileK>
__device__ __forceinline__ VisitedTiles visited_key_tiles(const AttentionParams& a, const Sequence& s, Range queries) {
  const Range any = keys_of_any(a, s, queries), all = keys_of_all(a, s, queries);
  if (any.empty()) return {0, 0, 0, 0, 0};
  VisitedTiles w;
  w.begin = static_cast<int>(any.begin / kTileK);
  w.end = static_cast<int>(tiles_in(any.end, kTileK));
  w.full_begin = static_cast<int>(clamped(tiles_in(all.begin, kTileK), w.begin, w.end));
  w.full_end = static_cast<int>(clamped(all.end < 0 ? 0 : all.end / kTileK, w.full_begin, w.end));
  w.num_masked = w.count() - (w.full_end - w.full_begin);
  return w;
}

// Visibility of the pairs of one tile: the window's edges cross the tile as diagonals. The constructor takes the lane's
// first row and column; `sees` takes offsets from those, which are constants of unrolled loops, so that a mask costs
// three registers.
template <int kTileQ, int kTileK>
struct PositionMask {
  int low, high, length;

  __device__ PositionMask() {}  // for a tile in which no pair is hidden
  __device__ PositionMask(const AttentionParams& a, const Sequence& s, int q_first, int k_first, int lane_row,
                          int lane_column)
      : low(diagonal(q_first + s.shift - a.window_left - k_first) + lane_row - lane_column),
        high(diagonal(q_first + s.shift + a.window_right - k_first) + 1 + lane_row - lane_column),
        length(min(s.len_k - k_first, kTileK) - lane_column) {}
  // Beyond these bounds all rows of the tile have the same visibility.
  __device__ static int diagonal(int64 x) { return static_cast<int>(clamped(x, -kTileQ, kTileK)); }
  __device__ bool sees(int row, int column) const {
    return column - row >= low && column - row < high && column < length;
  }
};

__device__ __forceinline__ void add_tile_counts(const AttentionParams& a, int64 visited, int64 masked, int64 skipped) {
  atomicAdd(a.tile_counts + 0, static_cast<uint64>(visited));
  atomicAdd(a.tile_counts + 1, static_cast<uint64>(masked));
  atomicAdd(a.tile_counts + 2, static_cast<uint64>(skipped));
}

// Key tiles without a masked pair, as the statistics count them: a short last tile counts as full if all its keys are
// visible.
template <int kTileK>
__device__ __forceinline__ Range full_key_tiles(const AttentionParams& a, const Sequence& s, Range queries) {
  const Range all = keys_of_all(a, s, queries);
  return {tiles_in(all.begin, kTileK),
          all.end >= s.len_k ? tiles_in(s.len_k, kTileK) : max(int64{0}, all.end) / kTileK};
}

// Adds the tiles of one query tile to the statistics.
template <int kTileK>
__device__ __forceinline__ void count_tiles(const AttentionParams& a, const Sequence& s, Range queries,
                                            const VisitedTiles& w) {
  if (!a.tile_counts || queries.empty()) return;
  const Range all = full_key_tiles<kTileK>(a, s, queries);
  const int64 full = max(int64{0}, min(all.end, int64{w.end}) - max(all.begin, int64{w.begin}));
  const int64 visited = w.count();
  add_tile_counts(a, visited, visited - full, tiles_in(s.len_k, kTileK) - visited);
}

}  // namespace cuflash
