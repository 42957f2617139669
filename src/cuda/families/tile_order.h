// How the tiles of a problem are dealt out among CTAs that stay.
#pragma once

#include "params.h"
#include "problem/problem.h"

namespace cuflash::cuda {

// tile_q: queries of a tile. ctas: how many there are. Fewer than 2^31 tiles.
TileOrder tile_order(const Problem& problem, int tile_q, int64_t ctas);

}  // namespace cuflash::cuda
