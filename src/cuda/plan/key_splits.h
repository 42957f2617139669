// How many CTAs share the keys of a query tile.
#pragma once

#include <cstdint>

#include "problem/problem.h"

namespace cuflash::cuda {

// What the number of splits depends on in addition to the problem.
struct SplitTarget {
  int tile_q, tile_k;
  int64_t packed;  // heads of a group that are rows of one tile
  int columns;     // columns of a row of partial results
  int num_sms;
};

// The largest number of key tiles that a query tile may see.
int64_t max_visited_tiles(const Problem& problem, int tile_q, int tile_k);

// The number of splits with the least estimated time. 1: query tiles keep the SMs busy, or reducing partial results
// would take longer than splitting saves. Times are in microseconds; 0: not estimated, because there are so many tiles.
struct KeySplitting {
  int64_t splits;
  double time, unsplit_time;
};
KeySplitting key_splits(const Problem& problem, const SplitTarget& target);

}  // namespace cuflash::cuda
