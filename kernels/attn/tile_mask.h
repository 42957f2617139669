// Reads the summary of a mask tensor for a kernel: which tiles are visited, and which pairs of a lane are visible in a
// tile. Everything except lane_mask is uniform over a warp, so that every warp of a CTA visits the same tiles.
#pragma once

#include "attn/score.h"
#include "attn/visited_tiles.h"
#include "mask_summary.h"
#include "tile/operand.h"

namespace cuflash {

// The axis along which tiles are visited: the keys of a query tile, or the queries of a key tile.
enum class MaskAxis { keys, queries };

// The part of the mask that a traversal covers. The traversal reads it again for every 32 tiles, so that it takes no
// registers in between.
struct MaskView {
  MaskOfHead mask;
  int other_first;  // first query or key of the tile on the other axis
  int end;          // end of the tiles to visit
};

// Iterates in ascending order over the tiles from `begin` on in which the mask shows some pair. A warp classifies 32
// tiles at a time, one per lane. Without a mask every tile is visible. view() returns the MaskView.
template <int kTileQ, int kTileK, MaskAxis kAxis>
struct MaskTraversal {
  int base;                 // tiles [base, base + 32) are classified
  unsigned visible, shown;  // bit masks of these tiles: visible and not yet returned; completely visible

  template <class View>
  __device__ __forceinline__ MaskTraversal(int begin, const View& view) : base(begin) {
    classify(view());
  }

  // The next visible tile, and whether the mask shows all of its pairs. number is -1 after the last tile.
  struct Tile {
    int number;
    bool is_full;
  };
  template <class View>
  __device__ __forceinline__ Tile next(const View& view) {
    while (visible == 0) {
      if (!classify_next(view())) return {-1, false};
    }
    const unsigned lowest = visible & -visible;
    visible ^= lowest;
    return {base + static_cast<int>(__popc(lowest - 1)), (shown & lowest) != 0};
  }
  // The number of visible tiles that next() has not returned.
  template <class View>
  __device__ __forceinline__ int count(const View& view) {
    int tiles = static_cast<int>(__popc(visible));
    while (classify_next(view())) tiles += static_cast<int>(__popc(visible));
    return tiles;
  }

 private:
  __device__ __forceinline__ bool classify_next(const MaskView& view) {
    if (view.end - base <= 32) return false;
    base += 32;
    classify(view);
    return true;
  }
  __device__ __forceinline__ void classify(const MaskView& view) {
    const int tile = base + lane_id();
    MaskVisibility visibility = tile < view.end ? MaskVisibility::all : MaskVisibility::none;
    if (view.mask.blocks && tile < view.end) {
      const bool keys = kAxis == MaskAxis::keys;
      visibility = mask_visibility(view.mask, keys ? view.other_first : tile * kTileQ, kTileQ,
                                   keys ? tile * kTileK : view.other_first, kTileK);
    }
    visible = __ballot_sync(0xffffffffu, visibility != MaskVisibility::none);
    shown = __ballot_sync(0xffffffffu, visibility == MaskVisibility::all);
  }
};

// The mask bits of query i for the 32 keys from key j on, a multiple of 16. Keys beyond the tensor are hidden.
__device__ __forceinline__ unsigned mask_word(const MaskOfHead& m, int i, int j) {
  const unsigned* row = mask_row(m, i);
  const int word = j / 32, words = m.spans * kMaskSpanWords;
  const unsigned low = word < words ? row[word] : 0;
  return j % 32 == 0 ? low : low >> 16 | (word + 1 < words ? row[word + 1] << 16 : 0);
}

// The score options of a head, with the summary in place of the mask tensor.
template <Element E, int kOptions>
struct MaskedOptions : ScoreOptions<E, kOptions & ~static_cast<int>(kMaskTensor)> {
  using Base = ScoreOptions<E, kOptions & ~static_cast<int>(kMaskTensor)>;
  static constexpr bool kReadsMask = (kOptions & kMaskTensor) != 0;

  MaskOfHead mask{};

  __device__ MaskedOptions(const AttentionParams& a, const Sequence& s, int b, int h) : Base(a, s, b, h) {
    if (kReadsMask && a.summary.blocks) mask = mask_of_head(a.summary, b, h);
  }
};

// Hides the scores of a lane according to the mask: queries in rows, keys in columns.
template <class Real, int kRowTiles, int kTiles>
__device__ __forceinline__ void hide_masked(Accumulator<Real> (&s)[kRowTiles][kTiles], const MaskOfHead& mask,
                                            int first_row, int k_first) {
#pragma unroll
  for (int r = 0; r < 2 * kRowTiles; ++r)
#pragma unroll
    for (int group = 0; group < (kTiles + 3) / 4; ++group) {
      const unsigned word =
          mask_word(mask, first_row + r / 2 * 16 + r % 2 * 8, k_first + 32 * group) >> accumulator_column();
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (group * 4 + n < kTiles && (word >> (8 * n + e) & 1) == 0)
            s[r / 2][group * 4 + n].x[r % 2 * 2 + e] = minus_infinity<Real>();
    }
}

}  // namespace cuflash
