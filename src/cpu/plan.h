// What the CPU decides about a problem: tile shape, tasks, workers. A pure function of problem and execution; the tile
// shape depends on the problem alone, so results never depend on the number of threads.
#pragma once

#include "problem/problem.h"
#include "problem/visibility.h"

namespace cuflash::cpu {

// Multiples of kTileUnit: a vector block of any type, and a whole number of dropout groups.
inline constexpr int64_t kTileUnit = 16;
inline constexpr int64_t kLargestTile = 64;

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

struct TileShape {
  int64_t q, k;
};
TileShape tile_shape(const Problem& problem);

// Tiles of all rows of one side, numbered batch by batch, head by head. Dense tensors have tiles for all their rows:
// those beyond a length are written too. Packed ones have tiles for the rows that exist.
class TileIndex {
 public:
  struct Place {
    int64_t b, h;
    Range rows;  // within the sequence
  };
  enum class Side { query, key };

  // `before` is scratch for batch + 1 numbers.
  TileIndex(const Problem& problem, Side side, int64_t heads, int64_t tile, int64_t* before);

  int64_t count() const { return before_[batch_] * heads_; }
  Place place(int64_t task) const;

  static int64_t count(const Problem& problem, Side side, int64_t heads, int64_t tile);

 private:
  static int64_t rows_of(const Problem& problem, Side side, int64_t b);

  const Problem& problem_;
  Side side_;
  int64_t batch_, heads_, tile_;
  int64_t* before_;  // tiles of one head in the batch entries before this one
};

// Workers worth waking for this many tasks of a problem.
int64_t worker_count(const Problem& problem, const Execution& execution, int64_t tasks);

}  // namespace cuflash::cpu
