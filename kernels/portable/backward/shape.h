// How the warps of a CTA share the work of backward, derived from the config.
#pragma once

#include "attn/visited_tiles.h"
#include "portable/backward/workspace.h"

namespace cuflash {

constexpr int round_up_blocks(int blocks, int warps) { return (blocks + warps - 1) / warps; }

// Over how many rows of warps the 16x16 blocks of dQ are laid out: the least work for the busiest warp, then the fewest
// operands to load. Where they are kept, weights are those of which there should be few.
constexpr int dq_row_warps(const BackwardConfig& c) {
  const int warps = c.key_warps * c.column_warps, rows = c.tile_q / 16, columns = c.dim_qk / 16;
  int best = 1, least = 1 << 30;
  for (int r = 1; r <= warps && r <= rows; r *= 2) {
    const int m = round_up_blocks(rows, r), n = round_up_blocks(columns, warps / r),
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
  static constexpr int kKeyTiles = C.tile_k / (16 * C.key_warps);  // of 16 keys, of one warp

  // The warps that share keys compute the scores of a part of the queries each, some of them none where queries are few.
  static constexpr int kScoreWarps = C.column_warps * 16 <= C.tile_q ? C.column_warps : C.tile_q / 16;
  static constexpr int kQueries = C.tile_q / kScoreWarps;  // whose scores one warp computes
  // At a time: S, dP and what options need for them live in registers beside the sums of dK and dV.
  static constexpr int kMost = size_of(E) == 8 || C.options != 0 ? 16 : 32;
  static constexpr int kChunk = kQueries < kMost ? kQueries : kMost;
  static constexpr int kQueryTiles = kChunk / 8, kChunks = kQueries / kChunk;

  // Columns of dK and dV, in blocks of 16, of one warp.
  static constexpr int kBlocksQK = C.dim_qk / 16, kBlocksV = C.dim_v / 16;
  static constexpr int kMyBlocksQK = round_up_blocks(kBlocksQK, C.column_warps);
  static constexpr int kMyBlocksV = round_up_blocks(kBlocksV, C.column_warps);

  // Of dQ.
  static constexpr int kRowWarps = dq_row_warps(C), kColumnWarps = kWarps / kRowWarps;
  static constexpr int kDqRows = round_up_blocks(C.tile_q / 16, kRowWarps);
  static constexpr int kDqBlocks = round_up_blocks(kBlocksQK, kColumnWarps);

  static_assert(C.tile_k % (16 * C.key_warps) == 0 && C.tile_q % 16 == 0 && C.tile_q % (kScoreWarps * 16) == 0);
  static_assert(C.tile_q / 16 % kRowWarps == 0 && kQueries % kChunk == 0);
  static_assert(C.stages > 0 || kChunks == 1);  // a warp keeps its scores while V and dO come

  static __device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ __forceinline__ int column_warp(int warp = Shape::warp()) { return warp / C.key_warps; }
  static __device__ __forceinline__ bool scores_queries() {
    return kScoreWarps == C.column_warps || column_warp() < kScoreWarps;
  }
  // In the tile.
  static __device__ __forceinline__ int first_key(int warp = Shape::warp()) {
    return warp % C.key_warps * kKeyTiles * 16;
  }
};

// Where a CTA works: the sequence, its tile of keys, the tiles of queries that see it.
struct TaskCoord {
  int b, head_k;
  int k_first;                        // key of the tile
  int written;                        // rows of dK and dV
  int group;                          // query heads that share the keys
  int not_finite_keys;                // 1: an element of K is not finite
  int64 tiles_before, tiles_of_head;  // numbers of query tiles: before the first of these heads, of one head
  const void *q, *dout;               // query 0 of the first of these heads
  Sequence sequence;
  VisitedTiles visited;

  __device__ __forceinline__ int64 query_tile(int member, int tile) const {
    return tiles_before + member * tiles_of_head + tile;
  }
};
static_assert(sizeof(TaskCoord) <= kTaskBytes);

// The shared memory of a CTA.
template <BackwardConfig C>
struct SharedTiles {
  using S = Shape<C>;
  static constexpr bool kSharedBuffers = C.stages == 0;  // K and V in one place, Q and dO in one place
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
  }  // where there is one
};

}  // namespace cuflash
