#include "cpu/plan.h"

#include <algorithm>

#include "cpu/threads.h"

namespace cuflash::cpu {

// Dropout groups span 16 keys: key tiles start at multiples of that, and of the products' step.
constexpr int64_t kKeyUnit = 16;

static int64_t tile_of(int64_t length, int64_t unit, int64_t most) {
  return std::min(round_up(std::max<int64_t>(length, 1), unit), most);
}

// 256 x 256 keeps K, V and the panels in L2 and spreads the packing of K and V over 256 queries. Where that makes few
// tasks, smaller query tiles: a function of the problem alone, so that no result depends on the number of threads.
TileShape forward_tile(const Problem& p, int64_t lanes, int64_t step) {
  TileShape shape{tile_of(p.len_q, lanes, 256), tile_of(p.len_k, std::max(kKeyUnit, step), 256)};
  const auto halve_until = [&](int64_t enough_tasks, int64_t smallest) {
    while (shape.q > smallest && p.batch * p.heads_q * ((p.len_q + shape.q - 1) / shape.q) < enough_tasks)
      shape.q = round_up(shape.q / 2, lanes);
  };
  halve_until(64, 128);        // packing twice as often costs 4%
  halve_until(16, 2 * lanes);  // and more and more below
  return shape;
}

TileShape backward_tile(const Problem& p, int64_t lanes, int64_t step) {
  return {tile_of(p.len_q, lanes, 128), tile_of(p.len_k, std::max(kKeyUnit, step), 128)};
}

int64_t TileIndex::rows_of(const Problem& problem, Side side, int64_t b) {
  if (!problem.packed()) return side == Side::query ? problem.len_q : problem.len_k;
  const Sequence sequence = sequence_of(problem, b);
  return side == Side::query ? sequence.len_q : sequence.len_k;
}

TileIndex::TileIndex(const Problem& problem, Side side, int64_t heads, int64_t tile, int64_t* before)
    : problem_(problem), side_(side), batch_(problem.batch), heads_(heads), tile_(tile), before_(before) {
  before_[0] = 0;
  for (int64_t b = 0; b < batch_; ++b) before_[b + 1] = before_[b] + (rows_of(problem, side, b) + tile - 1) / tile;
}

TileIndex::Place TileIndex::place(int64_t task) const {
  const int64_t b = std::upper_bound(before_, before_ + batch_ + 1, task / heads_) - before_ - 1;
  const int64_t within = task - before_[b] * heads_;
  const int64_t tile =
      tiles(b) - 1 - within % tiles(b);  // the last queries of a causal head see most keys: longest first
  const int64_t begin = tile * tile_;
  return {b, within / tiles(b), {begin, std::min(begin + tile_, rows_of(problem_, side_, b))}};
}

int64_t TileIndex::count(const Problem& problem, Side side, int64_t heads, int64_t tile) {
  int64_t tiles = 0;
  for (int64_t b = 0; b < problem.batch; ++b) tiles += (rows_of(problem, side, b) + tile - 1) / tile;
  return tiles * heads;
}

int64_t worker_count(const Problem& p, const Execution& execution, int64_t tasks) {
  // Waking a sleeping thread costs microseconds: about this many multiply-adds of one core.
  constexpr double kWorthWaking = 2e5;
  const double work = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.len_q) *
                      static_cast<double>(p.len_k) * static_cast<double>(p.dim_qk + p.dim_v);
  const int64_t useful = static_cast<int64_t>(std::min(work / kWorthWaking, 1e6)) + 1;
  return std::max<int64_t>(1, std::min({static_cast<int64_t>(num_threads(execution)), tasks, useful}));
}

}  // namespace cuflash::cpu
