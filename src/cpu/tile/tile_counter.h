// Counts the tiles that the workers of one pass over the score matrix visit.
#pragma once

#include <atomic>

#include "cpu/plan/plan.h"

namespace cuflash::cpu {

class TileCounter {
 public:
  // Every worker writes the same two counters, which costs time, so they are only counted if the caller wants them.
  explicit TileCounter(const TileStats* wanted) : wanted_(wanted != nullptr) {}

  void visit(TileKind kind, int64_t heads = 1) {
    if (!wanted_) return;
    visited_.fetch_add(heads, std::memory_order_relaxed);
    if (kind == TileKind::masked) masked_.fetch_add(heads, std::memory_order_relaxed);
  }

  // counted(sequence): whether the sequence is part of this pass.
  template <class Counted>
  void report(const Problem& p, TileShape tile, TileStats* stats, Counted counted) const {
    if (!stats) return;
    Checked tiles;
    for (int64_t b = 0; b < p.batch; ++b) {
      const Sequence s = sequence_of(p, b);
      if (!counted(s)) continue;
      tiles = tiles + Checked(p.heads_q) * ((s.len_q + tile.q - 1) / tile.q) * ((s.len_k + tile.k - 1) / tile.k);
    }
    *stats = {tile.q, tile.k, visited_.load(), masked_.load(), tiles.at_most(Checked::kLargest) - visited_.load()};
  }
  void report(const Problem& p, TileShape tile, TileStats* stats) const {
    report(p, tile, stats, [](const Sequence&) { return true; });
  }

 private:
  const bool wanted_;
  std::atomic<int64_t> visited_ = 0, masked_ = 0;
};

}  // namespace cuflash::cpu
