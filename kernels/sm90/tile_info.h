// Coordinates and key tile ranges of a consumer warpgroup's query tile. The producer computes them and passes them
// through shared memory together with Q, so that they occupy no registers of the consumer.
#pragma once

#include "attn/visited_tiles.h"

namespace cuflash {

struct TileInfo {
  int b, h;
  int q_first;                                   // the warpgroup's first query
  int q_begin, len_q, len_k;                     // of the sequence
  int shift;                                     // of the sequence; fits into an int, as the lengths do
  int rows_end;                                  // rows below this are stored; 0: no tile
  int begin, end;                                // key tiles of the CTA
  int own_begin, full_begin, full_end, own_end;  // key tiles of the warpgroup, as in VisitedTiles

  __device__ Sequence sequence() const { return {q_begin, 0, len_q, len_k, shift}; }
};
static_assert(sizeof(TileInfo) <= kTileInfoBytes);

}  // namespace cuflash
