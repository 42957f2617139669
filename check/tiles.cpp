#include "check/tiles.h"

#include <algorithm>

#include "error.h"

namespace cuflash::check {
namespace {

void count_tile(const Case& c, int64_t b, int64_t first_i, int64_t first_j, TileStats& counted) {
  bool any = false, all = true;
  for (int64_t i = first_i; i < std::min(first_i + counted.tile_q, c.length_q(b)); ++i)
    for (int64_t j = first_j; j < std::min(first_j + counted.tile_k, c.length_k(b)); ++j) {
      const bool seen = c.sees(b, i, j);
      any |= seen;
      all &= seen;
    }
  counted.visited += any * c.heads_q;
  counted.skipped += !any * c.heads_q;
  counted.masked += (any && !all) * c.heads_q;
}

}  // namespace

std::string wrong_statistics(const Case& c, const TileStats& stats) {
  if (stats.tile_q < 1 || stats.tile_k < 1) return join("tile_stats: a tile of ", stats.tile_q, " x ", stats.tile_k);
  TileStats counted{stats.tile_q, stats.tile_k, 0, 0, 0};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.length_q(b); i += stats.tile_q)
      for (int64_t j = 0; j < c.length_k(b); j += stats.tile_k) count_tile(c, b, i, j, counted);
  if (counted.visited == stats.visited && counted.masked == stats.masked && counted.skipped == stats.skipped) return "";
  return join("tile_stats: ", stats.visited, " visited, ", stats.masked, " masked, ", stats.skipped,
              " skipped; counted ", counted.visited, ", ", counted.masked, ", ", counted.skipped, " tiles of ",
              stats.tile_q, " x ", stats.tile_k);
}

}  // namespace cuflash::check
