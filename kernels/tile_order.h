// The order in which CTAs that stay take tiles of queries: the same function deals them out on the device and is tested
// on the host.
//
// Each CTA has one tile in a round. Where all tiles are equally long, heads come one after the other. Where the last
// queries of a head see the most keys, the tiles of some heads are dealt out together, from the longest to the shortest,
// in rounds that go through the CTAs forwards and backwards by turns: who had the longest of one round has the shortest of
// the next. A group of heads has its keys and values in L2, and an even number of rounds; the last one takes what is left.
#pragma once

#include "philox.h"

namespace cuflash {

struct TileOrder {
  unsigned heads;            // of all batch entries
  unsigned q_tiles;          // of a head
  unsigned rounds;           // of all groups
  unsigned heads_per_group;  // the last group has at least as many
  unsigned groups, group_rounds;
  int last_first;  // 1: from a head's last queries to its first
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
  const unsigned row = order.last_first ? width : order.q_tiles, n = slot / row, m = slot - n * row;
  if (order.last_first) return {first + m, order.q_tiles - 1 - n, slot < width * order.q_tiles};
  return {first + n, m, slot < width * order.q_tiles};
}

}  // namespace cuflash
