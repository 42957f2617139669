// Coordinates of a consumer's scores, and the dropout that the softmax applies to kept scores.
#pragma once

#include "attn/tile_scores.h"
#include "ptx/warpgroup.h"
#include "sm90/kept_halves.h"
#include "sm90/lane_coord.h"
#include "sm90/tile_info.h"

namespace cuflash {

// Coordinates of a lane's scores, for masks and options.
struct ScoreCoord {
  LaneCoord lane;
  Sequence sequence;
  int q_first;
  __device__ explicit ScoreCoord(const TileInfo& info)
      : lane(lane_coord_in_warpgroup()), sequence(info.sequence()), q_first(info.q_first) {}
};
// ReadCoord loads the coordinates at once, LateCoord where they are used.
struct ReadCoord {
  ScoreCoord coord;
  __device__ explicit ReadCoord(const TileInfo& info) : coord(info) {}
  __device__ const ScoreCoord& of(const TileInfo&) const { return coord; }
};
struct LateCoord {
  __device__ explicit LateCoord(const TileInfo&) {}
  __device__ static ScoreCoord of(const TileInfo& info) { return ScoreCoord(info); }
};

// Applies dropout to a key tile; same interface as NoDropout.
template <class Options>
struct ApplyDropout {
  const Options& options;
  LaneCoord lane;
  int q_first, k_first;
  __device__ __forceinline__ DropoutGroup group(int n) const {
    return options.dropout_group(q_first + lane.row, k_first + lane.column, 0, n / 2 * 4);
  }
  __device__ __forceinline__ void operator()(int n, unsigned (&probs)[4]) const {
    const DropoutGroup drawn = group(n);
#pragma unroll
    for (int x = 0; x < 4; ++x)
      probs[x] &= kept_halves(drawn, options.a.dropout_rule, x % 2, window_bytes(x / 2 * 2, x / 2 * 2 + 1));
  }
  // Applies dropout to probabilities that are not packed yet.
  template <int kTiles>
  __device__ __forceinline__ void apply(Accumulator<float> (&s)[1][kTiles]) const {
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      unsigned kept[4] = {~0u, ~0u, ~0u, ~0u};
      (*this)(n, kept);
#pragma unroll
      for (int x = 0; x < 8; ++x)
        if ((kept[x / 2] & (x % 2 == 0 ? 0xffffu : 0xffff0000u)) == 0) s[0][n + x / 4].x[x % 4] = 0;
    }
  }
  __device__ __forceinline__ ApplyDropout again() const { return {options, lane, q_first, uniform(k_first)}; }
};

}  // namespace cuflash
