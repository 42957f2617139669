// What a warpgroup has to know of the tile of queries that it computes, found by whoever copies the queries: in shared
// memory it takes no registers, and it is there together with the queries.
#pragma once

#include "attn/visited_tiles.h"

namespace cuflash {

struct TileInfo {
  int b, h;
  int q_first;                                   // the warpgroup's first query
  int q_begin, len_q, len_k;                     // of the sequence
  int shift;                                     // between lengths, which are ints
  int rows_end;                                  // rows below this are written; 0: there is no tile
  int begin, end;                                // tiles of keys of the CTA
  int own_begin, full_begin, full_end, own_end;  // tiles of keys of the warpgroup, as in Walk

  __device__ Sequence sequence() const { return {q_begin, 0, len_q, len_k, shift}; }
};
static_assert(sizeof(TileInfo) <= kTileInfoBytes);

}  // namespace cuflash
