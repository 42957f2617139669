// The tiles that a mask tensor shows, as lists that every role of a kernel reads. sm90/lists/mask_list.h makes them before
// the kernel runs: the key tiles of each query tile, and the query tiles of each key tile in ascending order. Key tiles
// ascend for the forward kernel: the first tile of a document, whose values may have to be zeroed, is then loaded while
// the consumers finish another query tile. For the dQ kernel they descend.
#pragma once

#include "params.h"

namespace cuflash {

// A list consists of: its number of tiles; for each consumer warpgroup the first tile that it sees and the end of its
// tiles; the rows of the query tile; for each warpgroup a run of tiles in which it sees everything; and the tiles.
// Ranges count tiles from the end of the list, so that the number of the next tile is smaller, as without a mask. A
// negative number of tiles means that there is no such query tile.
constexpr int kMaskListRows = 1 + 2 * kMaxMaskWarpgroups, kMaskListRuns = kMaskListRows + 1;
static_assert(kMaskListRuns + 2 * kMaxMaskWarpgroups <= kMaskListHeader);

// Groups of 64 queries that form a query tile. Its last warpgroups may have none.
struct MaskListRows {
  unsigned word;

  static __device__ MaskListRows of(int first, int groups) {
    return {static_cast<unsigned>(first) << 2 | static_cast<unsigned>(groups)};
  }
  __device__ int first_row() const { return static_cast<int>(word >> 2) * kWarpgroupRows; }
  __device__ int groups() const { return static_cast<int>(word & 3); }
};

// A tile of a list.
struct ListedMaskTile {
  static constexpr int kTileBits = 24;
  static constexpr unsigned kHidesKey = 1u << 31;

  unsigned word;

  static __device__ unsigned shows_all_bit(int group) { return 1u << (kTileBits + group); }
  __device__ int tile() const { return static_cast<int>(word & ((1u << kTileBits) - 1)); }
  // Whether the mask shows all pairs of the 64 queries, or keys, of a consumer warpgroup.
  __device__ bool shows_all(int group) const { return (word & shows_all_bit(group)) != 0; }
  // Whether some key of the tile may be hidden from all queries.
  __device__ bool hides_key() const { return (word & kHidesKey) != 0; }
};

// The blocks of 16 keys of a forward tile, which the producer reads to zero hidden values. The list stores them after
// the tiles.
struct MaskKeyBlocks {
  unsigned word;

  static __device__ MaskKeyBlocks of(unsigned seen, unsigned unsure) { return {seen | unsure << 8}; }
  // Whether the mask shows some key of block n to some query.
  __device__ bool is_seen(int n) const { return (word >> n & 1) != 0; }
  // Whether another key of block n may be hidden from all queries.
  __device__ bool may_hide(int n) const { return (word >> (8 + n) & 1) != 0; }
};

__device__ __forceinline__ const int* mask_list(const MaskLists& lists, int b, int h, int tile) {
  const long long head = static_cast<long long>(b) * lists.batch_step + static_cast<long long>(h) * lists.head_step;
  return lists.data + (head * lists.tiles + tile) * lists.stride;
}

}  // namespace cuflash
