// Reads the summary of a mask tensor for a kernel: which tiles are visited, and which pairs of a lane are visible in a
// tile. Everything except lane_mask is uniform over a warp, so that every warp of a CTA walks the same tiles.
#pragma once

#include "attn/score.h"
#include "attn/visited_tiles.h"
#include "mask_summary.h"
#include "tile/operand.h"

namespace cuflash {

// Which side of the score matrix a walk follows: the keys of a query tile, or the queries of a key tile.
enum class WalkAlong { keys, queries };

// Inputs that a walk reads again whenever it judges tiles, so that they take no registers in between.
struct WalkedMask {
  MaskOfHead mask;
  int other_first;  // first query or key of the tile on the other side
  int end;          // of the tiles
};

// The tiles from `begin` on that the mask does not hide completely from the tile on the other side, in ascending order.
// 32 tiles are judged at a time, one per lane. Without a mask every tile is visible. walked(): returns the WalkedMask.
template <int kTileQ, int kTileK, WalkAlong kAlong>
struct MaskWalk {
  int base;                 // tiles [base, base + 32) are judged
  unsigned visible, shown;  // of these tiles: still to come; completely visible

  template <class Walked>
  __device__ __forceinline__ MaskWalk(int begin, const Walked& walked) : base(begin) {
    judge(walked());
  }

  // The next tile, and whether the mask shows all of its pairs; -1 after the last tile.
  struct Tile {
    int number;
    bool is_full;
  };
  template <class Walked>
  __device__ __forceinline__ Tile next(const Walked& walked) {
    while (visible == 0) {
      if (!judge_more(walked())) return {-1, false};
    }
    const unsigned lowest = visible & -visible;
    visible ^= lowest;
    return {base + static_cast<int>(__popc(lowest - 1)), (shown & lowest) != 0};
  }
  // The number of tiles that are left.
  template <class Walked>
  __device__ __forceinline__ int count(const Walked& walked) {
    int tiles = static_cast<int>(__popc(visible));
    while (judge_more(walked())) tiles += static_cast<int>(__popc(visible));
    return tiles;
  }

 private:
  __device__ __forceinline__ bool judge_more(const WalkedMask& walked) {
    if (walked.end - base <= 32) return false;
    base += 32;
    judge(walked);
    return true;
  }
  __device__ __forceinline__ void judge(const WalkedMask& walked) {
    const int tile = base + lane_id();
    MaskVerdict verdict = tile < walked.end ? MaskVerdict::all : MaskVerdict::none;
    if (walked.mask.blocks && tile < walked.end) {
      const bool keys = kAlong == WalkAlong::keys;
      verdict = mask_verdict(walked.mask, keys ? walked.other_first : tile * kTileQ, kTileQ,
                             keys ? tile * kTileK : walked.other_first, kTileK);
    }
    visible = __ballot_sync(0xffffffffu, verdict != MaskVerdict::none);
    shown = __ballot_sync(0xffffffffu, verdict == MaskVerdict::all);
  }
};

// 32 keys of query i from key j on, a multiple of 16; keys beyond the tensor are hidden.
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
