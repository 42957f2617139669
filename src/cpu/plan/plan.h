// The decisions of the CPU backend for a problem: tile shape, tasks, workers. They depend only on the problem, the
// execution and the tuned choices of this machine. The keys of a tile, which decide the order of sums, depend on
// neither threads nor batch, so results do not either.
#pragma once

#include <algorithm>
#include <string>

#include "checked.h"
#include "problem/problem.h"
#include "problem/visibility.h"
#include "tuned/choice.h"

namespace cuflash::cpu {

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The queries and keys of one score tile; the queries are whole panels of `lanes`.
struct TileShape {
  int64_t q, k;
};
// largest_q: the largest query tile of the kernels for heads of up to 128. choice: null, or the largest tile that a
// tuner found best, which is used instead if it is legal.
TileShape forward_tile(const Problem& problem, int64_t lanes, int64_t step, int64_t largest_q, int64_t threads,
                       const tuned::Choice* choice = nullptr);
TileShape backward_tile(const Problem& problem, int64_t lanes, int64_t step, const tuned::Choice* choice = nullptr);

// Whether a problem with few queries takes the decode path (decode.h).
bool takes_decode(const Problem& problem);
// The sequences of a cache are decided one by one, so that neither the speed nor the bits of one depend on how many
// queries another has.
bool takes_decode(const Problem& problem, const Sequence& sequence);
bool decode_multiplies_bf16(const Problem& problem);  // whether decode multiplies bf16 without widening it
bool panels_multiply_halves(
    const Problem& problem);  // whether forward's panels multiply bf16 or f16 without widening it

inline constexpr int64_t kDecodeTile = 256;  // keys; splits are whole tiles
// Keys per block of scores, for this many rows that share a KV head. The kernels alternate between K and V after each
// block, and after each switch the hardware prefetcher must find the streams again, so blocks should be long; but the
// scores of all heads of a task should stay in L2.
inline constexpr int64_t kMaxDecodeKeys = 1024, kDecodeScores = 8192;
inline int64_t decode_block(int64_t rows) {
  return std::clamp(kDecodeScores / std::max<int64_t>(rows, 1) / kDecodeTile * kDecodeTile, kDecodeTile,
                    kMaxDecodeKeys);
}
// The largest number of scores of a block of up to this many rows: fewer rows have longer blocks.
inline int64_t max_decode_scores(int64_t rows) {
  return std::max(rows * kDecodeTile, std::min(rows * kMaxDecodeKeys, kDecodeScores));
}

struct DecodePlan {
  int64_t rows;              // at most this many query rows share a KV head
  int64_t heads_per_task;    // KV heads of one task
  int64_t head_blocks;       // tasks that cover the KV heads of a batch entry
  int64_t splits;            // upper bound, reached by the longest sequence
  int64_t requested_splits;  // splits of every sequence that the caller requests; 0: choose by its length
};
DecodePlan decode_plan(const Problem& problem, int64_t splits = 0);
// Keys per split of a sequence whose queries see a range of `keys`. It depends only on this sequence and not on the
// number of threads, so nothing else changes the bits of its result.
int64_t split_keys(const DecodePlan& plan, int64_t keys);

// Calls body with every tile of [0, length) that overlaps the range.
template <class Body>
void for_tiles(Range range, int64_t tile, int64_t length, Body body) {
  if (range.empty()) return;
  for (int64_t begin = range.begin / tile * tile; begin < range.end; begin += tile)
    body(Range{begin, begin + tile < length ? begin + tile : length});
}

// Tiles of all query or key rows, numbered by batch entry, then by head. Dense tensors have tiles for all their rows,
// because rows beyond a length are written too; packed tensors only for rows that exist.
class TileIndex {
 public:
  struct TileCoord {
    int64_t b, h;
    Range rows;  // within the sequence
  };
  enum class Side { query, key };

  // `before`: scratch for batch + 1 numbers.
  TileIndex(const Problem& problem, Side side, int64_t heads, int64_t tile, int64_t* before);

  TileCoord coord(int64_t task) const;
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

// Describes the path that a forward problem takes, and why.
std::string describe_forward(const Problem& problem, int64_t splits = 0);

// How many workers are worth waking for this many tasks of a problem.
int64_t worker_count(const Problem& problem, const Execution& execution, const Checked& tasks);

}  // namespace cuflash::cpu
