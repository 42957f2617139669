// How the tiles of a problem are distributed over persistent CTAs.
#pragma once

#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// tile_q: queries of a tile. ctas: their number. The problem has fewer than 2^31 tiles.
TileOrder tile_order(const Problem& problem, int tile_q, int64_t ctas);

}  // namespace cuflash::cuda
