// What the CPU decides about a problem: tile shape, tasks, workers. A pure function of problem, execution and what was
// measured on this machine; the tile shape depends on neither threads nor batch, so results never do.
#pragma once

#include <algorithm>
#include <string>

#include "checked.h"
#include "problem/problem.h"
#include "problem/visibility.h"
#include "tuned/choice.h"

namespace cuflash::cpu {

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Queries and keys whose scores one worker has at hand; the queries are whole panels of `lanes`.
struct TileShape {
  int64_t q, k;
};
// choice: null, or the largest tile that a tuner found best; taken where it is legal.
TileShape forward_tile(const Problem& problem, int64_t lanes, int64_t step, const tuned::Choice* choice = nullptr);
TileShape backward_tile(const Problem& problem, int64_t lanes, int64_t step, const tuned::Choice* choice = nullptr);

// Few queries against many keys: which problems the decode path (decode.h) takes, and how it cuts them.
bool takes_decode(const Problem& problem);
// The sequences of a cache are taken one by one: neither the speed nor a bit of one depends on how many queries another
// has.
bool takes_decode(const Problem& problem, const Sequence& sequence);

inline constexpr int64_t kDecodeTile = 256;  // keys: splits are whole tiles
// Keys whose scores are at hand, where so many rows share a key/value head. K and V take turns with them, and after each turn
// the processor has to find their streams again; but the scores of all heads of a task stay in the second-level cache.
inline constexpr int64_t kMaxDecodeKeys = 1024, kDecodeScores = 8192;
inline int64_t decode_block(int64_t rows) {
  return std::clamp(kDecodeScores / std::max<int64_t>(rows, 1) / kDecodeTile * kDecodeTile, kDecodeTile,
                    kMaxDecodeKeys);
}
// The scores of so many rows, or fewer with a longer block.
inline int64_t max_decode_scores(int64_t rows) {
  return std::max(rows * kDecodeTile, std::min(rows * kMaxDecodeKeys, kDecodeScores));
}

struct DecodePlan {
  int64_t rows;              // of queries that share a key/value head, at most
  int64_t heads_per_task;    // key/value heads of one task
  int64_t head_blocks;       // of a batch entry
  int64_t splits;            // ranges of keys of the longest sequence, at most
  int64_t requested_splits;  // ranges of keys of every sequence; 0: as many as its length is worth
};
DecodePlan decode_plan(const Problem& problem, int64_t splits = 0);
// Keys of one split, of a sequence whose queries see a range of `keys`: a function of that sequence alone, and of no
// number of threads, so that nothing else changes a bit of its results.
int64_t split_keys(const DecodePlan& plan, int64_t keys);

// Calls body with every tile of [0, length) that meets the range.
template <class Body>
void for_tiles(Range range, int64_t tile, int64_t length, Body body) {
  if (range.empty()) return;
  for (int64_t begin = range.begin / tile * tile; begin < range.end; begin += tile)
    body(Range{begin, begin + tile < length ? begin + tile : length});
}

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

  Place place(int64_t task) const;
  int64_t tiles(int64_t b) const { return before_[b + 1] - before_[b]; }  // of one head
  int64_t first_tile(int64_t b, int64_t h) const { return before_[b] * heads_ + h * tiles(b); }

  static Checked count(const Problem& problem, Side side, int64_t heads, int64_t tile);

 private:
  static int64_t rows_of(const Problem& problem, Side side, int64_t b);

  const Problem& problem_;
  Side side_;
  int64_t batch_, heads_, tile_;
  int64_t* before_;  // tiles of one head in the batch entries before this one
};

// The path of a forward problem in words, and why it got it.
std::string describe_forward(const Problem& problem, int64_t splits = 0);

// Workers worth waking for this many tasks of a problem.
int64_t worker_count(const Problem& problem, const Execution& execution, const Checked& tasks);

}  // namespace cuflash::cpu
