// Query tiles of the forward kernel that begin at boundaries of a mask tensor. A tile loads the keys that any of its
// warpgroups sees, so a tile across the boundary of two documents visits the keys of both. Tiles are runs of groups of
// 64 queries, at most as many as there are consumer warpgroups, chosen so that they visit the fewest keys in total.
#pragma once

#include "attn/sequence.h"
#include "sm90/mask_tiles.h"
#include "tile/operand.h"

namespace cuflash {

// Called by all threads of a CTA, for one batch entry whose heads share the mask.
template <auto C>
struct MaskAlignedTiling {
  static constexpr unsigned kStart = 8;  // cost of starting a tile, in blocks of 16 keys

  // A group of 64 queries. together[n]: number of blocks of 16 keys that it or one of the n groups before it sees.
  // groups[n].tile: the n-th tile from the end as a MaskListRows; 0: there is none.
  struct Group {
    unsigned together[kMaxMaskWarpgroups], tile;
  };
  static_assert(sizeof(Group) == kTilingGroupBytes && C.warpgroups <= kMaxMaskWarpgroups);

  const AttentionParams& a;
  const Sequence& s;
  const MaskOfHead& mask;
  Group* groups;
  int count;

  // The blocks among `wanted`, in one span of 512 keys, that a group sees.
  __device__ __forceinline__ unsigned blocks(int group, int span, unsigned wanted) const {
    const int rows = (mask.rows + kMaskBlock - 1) / kMaskBlock, first = group * (kWarpgroupRows / kMaskBlock);
    unsigned any = 0;
#pragma unroll
    for (int n = 0; n < kWarpgroupRows / kMaskBlock; ++n) {
      const int row = mask.rows == 1 ? 0 : min(first + n, rows - 1);
      if (wanted != 0) any |= mask.blocks[static_cast<int64>(row) * kMaskPlanes * mask.spans + span];
    }
    return any & wanted;
  }
  // Counts the blocks of every group. Each lane has one group; the lanes below it have the groups before that one.
  __device__ __forceinline__ void count_blocks() const {
    constexpr int kBefore = C.warpgroups - 1, kGroups = 32 - kBefore, kWarps = kMaskListThreads / 32;
#pragma unroll 1
    for (int base = static_cast<int>(threadIdx.x) / 32 * kGroups; base < count; base += kWarps * kGroups) {
      const int group = base - kBefore + lane_id();
      const bool exists = group >= 0 && group < count;
      Range keys{0, 0};
      if (exists) {
        const int64 first = int64{group} * kWarpgroupRows;
        keys = keys_of_any(a, s, {first, min(first + kWarpgroupRows, int64{s.len_q})});
      }
      const int begin = static_cast<int>(keys.begin / kMaskBlock);
      const int end = keys.empty() ? begin : static_cast<int>(tiles_in(keys.end, kMaskBlock));
      Group counted{};
#pragma unroll 8
      for (int span = 0; span < mask.spans; ++span) {
        const int from = max(0, begin - 32 * span), to = min(32, end - 32 * span);
        const unsigned seen = blocks(group, span, from < to ? mask_block_range(from, to) : 0);
        unsigned together = seen;
#pragma unroll
        for (int n = 0; n <= kBefore; ++n) {
          if (n > 0) together |= __shfl_up_sync(0xffffffffu, seen, n);
          counted.together[n] += static_cast<unsigned>(__popc(together));
        }
      }
      if (exists && lane_id() >= kBefore) groups[group] = counted;
    }
  }
  // The least cost of all groups up to a given one is the cost of a last tile plus the least cost of the groups before
  // it. The lowest bits of a cost hold the size of its last tile, so that larger tiles win ties.
  __device__ __forceinline__ void choose() const {
    constexpr int kAtOnce = 4;  // groups whose counts are read together
    unsigned least[kMaxMaskWarpgroups] = {
        0, ~0u >> 1, ~0u >> 1};  // least[n]: least cost of the groups up to the one n + 1 before this one
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
      Group read[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) read[i] = groups[min(first + i, count - 1)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        unsigned best = ~0u;
#pragma unroll
        for (int n = 0; n < C.warpgroups; ++n)
          best = min(best, least[n] + (read[i].together[n] << 2) + static_cast<unsigned>(kMaxMaskWarpgroups - 1 - n));
        least[2] = least[1], least[1] = least[0], least[0] = (best & ~3u) + (kStart << 2);
        if (first + i < count) groups[first + i].together[0] = kMaxMaskWarpgroups - (best & 3);
      }
    }
    int end = count;
#pragma unroll 1
    for (int tile = 0; end > 0; ++tile) {
      const int size = static_cast<int>(groups[end - 1].together[0]);
      end -= size;
      groups[tile].tile = MaskListRows::of(end, size).word;
    }
  }

  __device__ __forceinline__ void run() const {
    count_blocks();
    __syncthreads();
    if (threadIdx.x == 0) choose();
    __syncthreads();
  }
};

}  // namespace cuflash
