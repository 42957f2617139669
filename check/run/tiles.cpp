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

// count_tile for a head of a call with a mask tensor. A tile is skipped if positions or the mask hide all of its pairs;
// the mask beyond the lengths of the sequence counts, too.
void count_masked_tile(const Case& c, const CaseMemory& memory, int64_t b, int64_t h, int64_t first_i, int64_t first_j,
                       TileStats& counted) {
  bool any = false, all = true, shows_any = false, shows_all = true;
  for (int64_t i = first_i; i < std::min(first_i + counted.tile_q, c.len_q); ++i)
    for (int64_t j = first_j; j < std::min(first_j + counted.tile_k, c.len_k); ++j) {
      const bool shown = memory.shows(b, h, i, j);
      shows_any |= shown, shows_all &= shown;
      if (i >= c.length_q(b) || j >= c.length_k(b)) continue;
      const bool seen = c.sees(b, i, j);
      any |= seen, all &= seen;
    }
  const bool visited = any && shows_any;
  counted.visited += visited;
  counted.skipped += !visited;
  counted.masked += visited && !(all && shows_all);
}

bool same(const TileStats& a, const TileStats& b) {
  return a.visited == b.visited && a.masked == b.masked && a.skipped == b.skipped;
}

TileStats counted_with_mask(const Case& c, const CaseMemory& memory, const TileStats& stats) {
  TileStats counted{stats.tile_q, stats.tile_k, 0, 0, 0};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads_q; ++h)
      for (int64_t i = 0; i < c.length_q(b); i += stats.tile_q)
        for (int64_t j = 0; j < c.length_k(b); j += stats.tile_k) count_masked_tile(c, memory, b, h, i, j, counted);
  return counted;
}

// Whether a call may visit every tile that positions allow: calls with few queries on the CPU, where heads share the
// keys that are read, and GPU kernels that read the mask tensor itself.
bool may_ignore_mask(const Case& c) {
  int64_t longest = 0;
  for (int64_t b = 0; b < c.batch; ++b) longest = std::max(longest, c.length_q(b));
  return c.device == Device::cuda || longest <= 16;
}

}  // namespace

std::string wrong_statistics(const Case& c, const TileStats& stats, Heads heads, const CaseMemory* memory) {
  if (stats.tile_q < 1 || stats.tile_k < 1) return join("tile_stats: a tile of ", stats.tile_q, " x ", stats.tile_k);
  TileStats counted{stats.tile_q, stats.tile_k, 0, 0, 0};
  if (c.mask && memory) {
    counted = counted_with_mask(c, *memory, stats);
    if (same(counted, stats)) return "";
  }
  if (!c.mask || may_ignore_mask(c)) {
    counted = {stats.tile_q, stats.tile_k, 0, 0, 0};
    const int64_t group = heads == Heads::packed ? c.heads_q / c.heads_k : 1;
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t row = 0; row < c.length_q(b) * group; row += stats.tile_q)
        for (int64_t j = 0; j < c.length_k(b); j += stats.tile_k) count_tile(c, b, group, row, j, counted);
    if (same(counted, stats)) return "";
  }
  return join("tile_stats: ", stats.visited, " visited, ", stats.masked, " masked, ", stats.skipped,
              " skipped; counted ", counted.visited, ", ", counted.masked, ", ", counted.skipped, " tiles of ",
              stats.tile_q, " x ", stats.tile_k);
}

}  // namespace cuflash::check
