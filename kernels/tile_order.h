// Static schedule of persistent CTAs over query tiles. The device evaluates the same function that host tests check.
//
// Each CTA gets one tile per round. If all tiles are equally long, heads follow one after the other. If the last
// queries of a head see the most keys, the tiles of a group of heads are sorted from the longest to the shortest, and
// rounds traverse the CTAs forwards and backwards alternately: the CTA with the longest tile of one round gets the
// shortest of the next. A group's keys and values fit into L2. A group has an even number of rounds; the last group
// takes the rest.
#pragma once

#include "philox.h"

namespace cuflash {

struct TileOrder {
  unsigned heads;            // query heads of all batch entries
  unsigned q_tiles;          // query tiles of a head
  unsigned rounds;           // rounds of all groups
  unsigned heads_per_group;  // the last group may have more
  unsigned groups, group_rounds;
  int descending;  // 1: query tiles of a head in descending order
};

struct TileCoord {
  unsigned head, q_tile;
  bool exists;
};

CUFLASH_SHARED_FUNCTION TileCoord tile_of(const TileOrder& order, unsigned cta, unsigned ctas, unsigned round) {
  unsigned group = round / order.group_rounds;
  if (group >= order.groups) group = order.groups - 1;
  const unsigned first = group * order.heads_per_group;
  const unsigned width = group + 1 == order.groups ? order.heads - first : order.heads_per_group;
  const unsigned rest = round - group * order.group_rounds;
  const unsigned slot = rest * ctas + (rest % 2 ? ctas - 1 - cta : cta);
  const unsigned row = order.descending ? width : order.q_tiles, n = slot / row, m = slot - n * row;
  if (order.descending) return {first + m, order.q_tiles - 1 - n, slot < width * order.q_tiles};
  return {first + n, m, slot < width * order.q_tiles};
}

}  // namespace cuflash
