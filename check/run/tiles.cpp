#include "check/run/tiles.h"

#include <algorithm>

#include "error.h"

namespace cuflash::check {
namespace {

// Rows [first_row, first_row + tile_q) of a head, or of `group` heads, heads of the same query adjacent.
void count_tile(const Case& c, int64_t b, int64_t group, int64_t first_row, int64_t first_j, TileStats& counted) {
  bool any = false, all = true;
  const int64_t end_row = std::min(first_row + counted.tile_q, c.length_q(b) * group);
  for (int64_t i = first_row / group; i <= (end_row - 1) / group; ++i)
    for (int64_t j = first_j; j < std::min(first_j + counted.tile_k, c.length_k(b)); ++j) {
      const bool seen = c.sees(b, i, j);
      any |= seen;
      all &= seen;
    }
  const int64_t times = c.heads_q / group;
  counted.visited += any * times;
  counted.skipped += !any * times;
  counted.masked += (any && !all) * times;
}

}  // namespace

std::string wrong_statistics(const Case& c, const TileStats& stats, Heads heads) {
  if (stats.tile_q < 1 || stats.tile_k < 1) return join("tile_stats: a tile of ", stats.tile_q, " x ", stats.tile_k);
  TileStats counted{stats.tile_q, stats.tile_k, 0, 0, 0};
  const int64_t group = heads == Heads::packed ? c.heads_q / c.heads_k : 1;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t row = 0; row < c.length_q(b) * group; row += stats.tile_q)
      for (int64_t j = 0; j < c.length_k(b); j += stats.tile_k) count_tile(c, b, group, row, j, counted);
  if (counted.visited == stats.visited && counted.masked == stats.masked && counted.skipped == stats.skipped) return "";
  return join("tile_stats: ", stats.visited, " visited, ", stats.masked, " masked, ", stats.skipped,
              " skipped; counted ", counted.visited, ", ", counted.masked, ", ", counted.skipped, " tiles of ",
              stats.tile_q, " x ", stats.tile_k);
}

}  // namespace cuflash::check
