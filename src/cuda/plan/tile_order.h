// How the tiles of a problem are distributed over persistent CTAs.
#pragma once

#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// tile_q: rows of a tile. ctas: number of CTAs. splits: number of CTAs that share the keys of a tile; for the order,
// each split counts as a head, with the splits of a head side by side. packed: heads of a group that are rows of one
// tile. There are fewer than 2^31 of each.
TileOrder tile_order(const Problem& problem, int tile_q, int64_t ctas, int64_t splits = 1, int64_t packed = 1);

// Tiles of one head in a list (TileList), as far as the host can know: their number, and the number of key tiles that
// the longest tile sees and that they see on average.
struct ListedWork {
  int64_t tiles, longest;
  double mean;
  int64_t ctas;
};
// The number of heads whose tiles are sorted together: as many as have keys, over all sequences, that fit into L2, but
// enough for CTAs to have time for the longest tiles of the last group and for their share of its other tiles.
int64_t listed_heads_per_group(const Problem& problem, const ListedWork& work);

}  // namespace cuflash::cuda
