// A key tile that a consumer of the forward kernel visits: its number, and the pairs that a mask tensor hides in it.
#pragma once

#include "attn/tile_scores.h"
#include "sm90/forward/pipeline.h"
#include "sm90/lane_coord.h"
#include "sm90/mask_bits.h"

namespace cuflash {

// A step without a mask tensor: tiles are visited one after the other.
struct KeyStep {
  int tile;

  template <class Pipeline>
  __device__ __forceinline__ KeyStep(int number, const Pipeline&, int, bool = true) : tile(number) {}
  __device__ static constexpr bool shows_all(int) { return true; }
  __device__ __forceinline__ void load(const AttentionParams&, const TileInfo&, int) {}
};

// A step with a mask tensor: the producer has written the number of the tile to the stage. It must be constructed
// before the stage is released.
template <Sm90ForwardConfig C>
struct MaskedKeyStep {
  const Pipeline<C>& pipeline;
  int stage, tile;
  ListedMaskTile listed;
  bool crosses_window;  // positions hide some pairs, too
  LaneMask<C.tile_k> mask;

  // reads: the number of a full tile is not needed if the call has no options besides the mask.
  __device__ __forceinline__ MaskedKeyStep(int, const Pipeline<C>& pipeline, int stage, bool reads = true)
      : pipeline(pipeline), stage(stage), listed{} {
    if (reads) listed.word = static_cast<unsigned>(uniform(static_cast<int>(pipeline.listed_tile(stage).word)));
    tile = listed.tile();
  }
  // Whether the mask shows all pairs of this warpgroup.
  __device__ bool shows_all(int group) const { return listed.shows_all(group); }
  // Loads what masking needs for a tile that may not be fully visible.
  __device__ __forceinline__ void load(const AttentionParams& a, const TileInfo& info, int group) {
    crosses_window = uniform(tile < info.full_begin || tile >= info.full_end);
    mask = LaneMask<C.tile_k>::all();
    if (listed.shows_all(group)) return;
    const LaneCoord lane = lane_coord_in_warpgroup();
    mask.load({pipeline.mask(stage, group), a.summary.rows > 1}, tile * C.tile_k, lane.row, lane.column);
  }
  template <class Scores>
  __device__ __forceinline__ void hide(Scores& s, const AttentionParams& a, const Sequence& sequence, LaneCoord lane,
                                       int q_first) const {
    LaneMask<C.tile_k> visible = mask;
    if (crosses_window)
      visible.hide_by_position(
          PositionMask<kWarpgroupRows, C.tile_k>(a, sequence, q_first, tile * C.tile_k, lane.row, lane.column));
    visible.hide(s);
  }
};

template <Sm90ForwardConfig C, bool = reads_mask(C)>
struct KeyStepOf {
  using Type = KeyStep;
};
template <Sm90ForwardConfig C>
struct KeyStepOf<C, true> {
  using Type = MaskedKeyStep<C>;
};

}  // namespace cuflash
