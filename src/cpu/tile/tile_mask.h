// The mask tensor of a tile of queries x keys, panel by panel: from the tensor itself, or from its summary. Panels that
// see nothing are skipped, and panels that see everything are computed as without a mask.
#pragma once

#include "cpu/plan/arena.h"
#include "cpu/plan/plan.h"
#include "problem/problem.h"

namespace cuflash::cpu {

// The visible pairs of a panel.
struct PanelMask {
  MaskVisibility visibility = MaskVisibility::all;
  Range keys{0, kUnbounded};  // from the first to the last visible key, counted from the start of the tile
  // [key / 32][lane], from the start of the tile: bit key % 32 is whether the lane sees the key. Null if all lanes see
  // all keys.
  const uint32_t* words = nullptr;
};

class TileMask {
 public:
  // Nothing is taken from the arena if the problem has no mask.
  TileMask(Arena& arena, const Problem& problem, int64_t lanes, TileShape shape);

  // Reads the mask of a tile of head (b, h), whose queries and keys start at multiples of 16. A tile that ends before
  // the tensor does is classified as a whole: the mask beyond the length of a sequence counts, too.
  void load(const Problem& problem, int64_t b, int64_t h, Range queries, Range keys);

  bool any() const { return any_; }
  // The mask of the panel that starts with query `first` of the tile.
  const PanelMask& panel(int64_t first) const { return given_ ? panels_[first / lanes_] : whole_; }

 private:
  void load_words(const Problem& problem, int64_t b, int64_t h, Range queries, Range keys, uint32_t* words);
  void classify(const Range& queries, int64_t keys, const uint32_t* words, PanelMask& panel) const;

  bool given_, any_ = true;
  int64_t lanes_, tile_k_, words_ = 0;  // words_: words of a row of the tile
  PanelMask whole_;
  PanelMask* panels_ = nullptr;
  uint32_t* bits_ = nullptr;  // [panel][word][lane]
  uint32_t* row_ = nullptr;   // [word]: mask of one query
};

}  // namespace cuflash::cpu
