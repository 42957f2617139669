#include "cpu/plan.h"

#include <algorithm>

#include "cpu/threads.h"

namespace cuflash::cpu {

TileShape tile_shape(const Problem& problem) {
  const auto tile = [](int64_t length) { return std::clamp(round_up(length, kTileUnit), kTileUnit, kLargestTile); };
  return {tile(problem.len_q), tile(problem.len_k)};
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
  const int64_t tiles = before_[b + 1] - before_[b];
  const int64_t within = task - before_[b] * heads_;
  const int64_t tile = tiles - 1 - within % tiles;  // the last queries of a causal head see most keys: longest first
  const int64_t begin = tile * tile_;
  return {b, within / tiles, {begin, std::min(begin + tile_, rows_of(problem_, side_, b))}};
}

int64_t TileIndex::count(const Problem& problem, Side side, int64_t heads, int64_t tile) {
  int64_t tiles = 0;
  for (int64_t b = 0; b < problem.batch; ++b) tiles += (rows_of(problem, side, b) + tile - 1) / tile;
  return tiles * heads;
}

int64_t worker_count(const Problem& p, const Execution& execution, int64_t tasks) {
  // Waking a sleeping thread costs microseconds: about this many multiply-adds of one core.
  constexpr double kWorthWaking = 1e5;
  const double work = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.len_q) *
                      static_cast<double>(p.len_k) * static_cast<double>(p.dim_qk + p.dim_v);
  const int64_t useful = static_cast<int64_t>(std::min(work / kWorthWaking, 1e6)) + 1;
  return std::max<int64_t>(1, std::min({static_cast<int64_t>(num_threads(execution)), tasks, useful}));
}

}  // namespace cuflash::cpu
