// The lists of tiles that a mask tensor shows, for the sm_90a kernels (kernels/sm90/mask_tiles.h): their launch, their
// size in the workspace, and the bits of the summary as TMA addresses them.
#pragma once

#include "cuda/plan/plan.h"
#include "params.h"

namespace cuflash::cuda {

// Number of heads with lists, of tiles of such a head, and the largest number of tiles in a list. has_blocks: whether
// lists have the key blocks of each tile. groups: number of groups of 64 queries if the mask may decide which of them
// form a tile; otherwise 0.
struct MaskListExtent {
  int64_t heads, tiles, longest;
  bool has_blocks = false;
  int64_t groups = 0;
};
// Whether every head has separate lists.
bool mask_differs_by_head(const Problem& problem);

Launch plan_mask_lists(const KernelKey& kernel, const Problem& problem, const MaskListExtent& extent);
size_t mask_list_bytes(const Problem& problem, const MaskListExtent& extent);
MaskLists mask_lists(const Problem& problem, const MaskListExtent& extent, void* data);

// Boxes of 64 queries, or of one if all queries share it, and of this many bytes of bits. The problem has a summary.
TensorMap mask_bits_map(const Problem& problem, int box_bytes = kMaskBoxBytes);

}  // namespace cuflash::cuda
