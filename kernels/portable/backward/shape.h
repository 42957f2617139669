// How the warps of a CTA divide the work of backward, derived from the config; task coordinates; shared memory layout.
#pragma once

#include "attn/visited_tiles.h"
#include "portable/backward/workspace.h"

namespace cuflash {

constexpr int blocks_per_warp(int blocks, int warps) { return (blocks + warps - 1) / warps; }

// Number of warp rows for the 16x16 blocks of dQ: the least work for the busiest warp, then the fewest operands to
// load. With all_gradients the dS operands are kept in registers, so their number counts twice.
constexpr int dq_row_warps(const BackwardConfig& c) {
  const int warps = c.key_warps * c.column_warps, rows = c.tile_q / 16, columns = c.dim_qk / 16;
  int best = 1, least = 1 << 30;
  for (int r = 1; r <= warps && r <= rows; r *= 2) {
    const int m = blocks_per_warp(rows, r), n = blocks_per_warp(columns, warps / r),
              cost = m * n * 64 + (c.all_gradients ? 2 : 1) * m + n;
    if (cost < least) best = r, least = cost;
  }
  return best;
}

template <BackwardConfig C>
struct Shape {
  static constexpr Element E = C.element;
  using Ops = Operands<E>;
  using Real = RealOf<E>;
  using Sum = Accumulator<Real>;
  using KTile = Tile<E, C.tile_k, C.dim_qk>;
  using VTile = Tile<E, C.tile_k, C.dim_v>;
  using QTile = Tile<E, C.tile_q, C.dim_qk>;
  using DoutTile = Tile<E, C.tile_q, C.dim_v>;
  using ScoreTile = Tile<E, C.tile_k, C.tile_q>;  // P or dS, keys in rows

  static constexpr int kThreads = num_threads(C), kWarps = kThreads / 32;
  static constexpr int kKeyTiles = C.tile_k / (16 * C.key_warps);  // tiles of 16 keys per warp

  // The warps that share keys compute the scores of different queries; some compute none if there are few queries.
  static constexpr int kScoreWarps = C.column_warps * 16 <= C.tile_q ? C.column_warps : C.tile_q / 16;
  static constexpr int kQueries = C.tile_q / kScoreWarps;  // queries per scoring warp
  // Number of queries processed at a time: S, dP and the values of options share the registers with dK and dV.
  static constexpr int kMax = size_of(E) == 8 || C.options != 0 ? 16 : 32;
  static constexpr int kChunk = kQueries < kMax ? kQueries : kMax;
  static constexpr int kQueryTiles = kChunk / 8, kChunks = kQueries / kChunk;

  // Blocks of 16 columns of dK and dV, in all and per warp.
  static constexpr int kBlocksQK = C.dim_qk / 16, kBlocksV = C.dim_v / 16;
  static constexpr int kWarpBlocksQK = blocks_per_warp(kBlocksQK, C.column_warps);
  static constexpr int kWarpBlocksV = blocks_per_warp(kBlocksV, C.column_warps);

  // How warps share the dQ tile.
  static constexpr int kRowWarps = dq_row_warps(C), kColumnWarps = kWarps / kRowWarps;
  static constexpr int kDqRows = blocks_per_warp(C.tile_q / 16, kRowWarps);
  static constexpr int kDqBlocks = blocks_per_warp(kBlocksQK, kColumnWarps);

  static_assert(C.tile_k % (16 * C.key_warps) == 0 && C.tile_q % 16 == 0 && C.tile_q % (kScoreWarps * 16) == 0);
  static_assert(C.tile_q / 16 % kRowWarps == 0 && kQueries % kChunk == 0);
  static_assert(C.stages > 0 || kChunks == 1);  // a warp keeps its scores while V and dO are loaded

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int column_warp(int warp = Shape::warp()) { return warp / C.key_warps; }
  static __device__ __forceinline__ bool scores_queries() {
    return kScoreWarps == C.column_warps || column_warp() < kScoreWarps;
  }
  // First key of a warp within the tile.
  static __device__ __forceinline__ int first_key(int warp = Shape::warp()) {
    return warp % C.key_warps * kKeyTiles * 16;
  }
};

// Task of a CTA: the sequence, the key tile and the query tiles that see it.
struct TaskCoord {
  int b, head_k;
  int k_first;                        // first key of the tile
  int written;                        // rows of dK and dV to store
  int group;                          // query heads per KV head
  int not_finite_keys;                // 1: an element of K is not finite
  int64 tiles_before, tiles_of_head;  // query tile index of the group's first head, tiles per head
  const void *q, *dout;               // query 0 of the group's first head
  Sequence sequence;
  VisitedTiles visited;
  int dq_before;  // with a mask tensor: earlier key tiles that add to dQ of the current queries

  __device__ __forceinline__ int64 query_tile(int member, int tile) const {
    return tiles_before + member * tiles_of_head + tile;
  }
};
static_assert(sizeof(TaskCoord) <= kTaskBytes);

// Shared memory layout.
template <BackwardConfig C>
struct SharedTiles {
  using S = Shape<C>;
  static constexpr bool kSharedBuffers = C.stages == 0;  // K and V share one buffer, Q and dO another
  static constexpr int kCopies = kSharedBuffers ? 1 : C.stages;
  static constexpr int kKeys = kSharedBuffers
                                   ? (S::KTile::kBytes > S::VTile::kBytes ? S::KTile::kBytes : S::VTile::kBytes)
                                   : S::KTile::kBytes + S::VTile::kBytes;
  static constexpr int kQueries =
      kSharedBuffers ? (S::QTile::kBytes > S::DoutTile::kBytes ? S::QTile::kBytes : S::DoutTile::kBytes)
                     : S::QTile::kBytes + S::DoutTile::kBytes;
  static constexpr int kStageBytes = kQueries + row_stats_bytes(C);
  static constexpr int kScores = kKeys + kCopies * kStageBytes;
  static constexpr int kTaskOffset = kScores + score_tiles(C) * S::ScoreTile::kBytes;
  static_assert(kTaskOffset + kTaskBytes == shared_bytes(C));

  unsigned char* memory;

  __device__ typename S::KTile k() const { return {memory}; }
  __device__ typename S::VTile v() const { return {memory + (kSharedBuffers ? 0 : S::KTile::kBytes)}; }
  __device__ typename S::QTile q(int stage) const { return {memory + kKeys + stage * kStageBytes}; }
  __device__ typename S::DoutTile dout(int stage) const {
    return {memory + kKeys + stage * kStageBytes + (kSharedBuffers ? 0 : S::QTile::kBytes)};
  }
  __device__ typename S::Real* stats(int stage) const {
    return reinterpret_cast<typename S::Real*>(memory + kKeys + stage * kStageBytes + kQueries);
  }
  __device__ TaskCoord* task() const { return reinterpret_cast<TaskCoord*>(memory + kTaskOffset); }
  __device__ typename S::ScoreTile ds() const { return {memory + kScores}; }
  __device__ typename S::ScoreTile p() const {
    return {memory + kScores + S::ScoreTile::kBytes};
  }  // if score_tiles(C) == 2
};

}  // namespace cuflash
