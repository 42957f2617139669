// Coordinates of a consumer's scores, and the dropout that the softmax applies to kept scores.
#pragma once

#include "attn/tile_scores.h"
#include "ptx/warpgroup.h"
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
// Read now, or where they are used.
struct ReadCoord {
  ScoreCoord coord;
  __device__ explicit ReadCoord(const TileInfo& info) : coord(info) {}
  __device__ const ScoreCoord& of(const TileInfo&) const { return coord; }
};
struct LateCoord {
  __device__ explicit LateCoord(const TileInfo&) {}
  __device__ static ScoreCoord of(const TileInfo& info) { return ScoreCoord(info); }
};

// Dropout of a key tile, as KeepAll.
template <class Options>
struct Drop {
  const Options& options;
  LaneCoord lane;
  int q_first, k_first;
  __device__ __forceinline__ void operator()(int n, Accumulator<float> (&pair)[2]) const {
    drop_pair(pair, options, options.a.dropout_threshold, lane, q_first, k_first, 0, n);
  }
  __device__ __forceinline__ Drop again() const { return {options, lane, q_first, uniform(k_first)}; }
};

}  // namespace cuflash
