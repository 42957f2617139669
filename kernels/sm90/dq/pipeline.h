// Shared memory layout of the dQ kernel, and the mbarriers between its producer and its consumers.
//
//   Q, then dO of each warpgroup, in 1 or 2 stages | K of each stage | V of each stage | bias and
//   mask of each stage of K and each warpgroup | row statistics and TileInfo of
//   each warpgroup | mbarriers | listed tile of each stage of K, with a mask tensor
//
//   full     TMA has filled the stage; the consumers wait
//   empty    one arrival per consumer warp; the producer waits
#pragma once

#include "portable/backward/workspace.h"
#include "ptx/barrier.h"
#include "sm90/key_mask_tile.h"
#include "sm90/mask_tiles.h"
#include "sm90/ring.h"
#include "sm90/step_info.h"
#include "sm90/tile_info.h"
#include "tile/swizzled.h"

namespace cuflash {

template <Sm90DqConfig C>
struct DqPipeline {
  using QTile = SwizzledTile<kWarpgroupRows, C.dim_qk>;
  using DoutTile = SwizzledTile<kWarpgroupRows, C.dim_v>;
  using KTile = SwizzledTile<C.tile_k, C.dim_qk>;
  using VTile = SwizzledTile<C.tile_k, C.dim_v>;
  static constexpr int kQueryStages = C.query_stages * C.warpgroups;
  static constexpr int kStatsBytes = row_stats_bytes(portable_view(C)),
                       kStatsStageBytes = row_stats_stage_bytes(portable_view(C));
  static constexpr int kDouts = kQueryStages * QTile::kBytes;
  static constexpr int kKeys = kDouts + kQueryStages * DoutTile::kBytes;
  static constexpr int kValues = kKeys + C.key_stages * KTile::kBytes;
  using BiasTile = SwizzledTile<kWarpgroupRows, C.tile_k>;
  static constexpr int kBiases = kValues + C.value_stages * VTile::kBytes;
  static constexpr int kMasks = kBiases + C.key_stages * C.warpgroups * bias_tile_bytes(C);
  static constexpr int kStats = kMasks + C.key_stages * C.warpgroups * mask_tile_bytes(C);
  static constexpr int kTileInfoBegin = kStats + kQueryStages * kStatsStageBytes;
  static constexpr int kBarriers = kTileInfoBegin + num_tile_infos(C) * C.warpgroups * kTileInfoBytes;
  static_assert(C.options == 0 || kStatsBytes + int{sizeof(StepInfo)} <= kStatsStageBytes);
  static constexpr int kListedTiles = kBarriers + 8 * num_barriers(C);
  static_assert(kStats % kTmaAlignment == 0 && kListedTiles + listed_tile_bytes(C) == shared_bytes(C));

  // Named barriers: the first ID of each kind. ID 0 is __syncthreads.
  enum NamedBarrier : int {
    kPingPongBarrier = 1,                                   // + group: the warpgroup may issue wgmma
    kFiniteCheckBarrier = kPingPongBarrier + C.warpgroups,  // + group: bar.red over the warpgroup's scores
    kNamedBarriers = kFiniteCheckBarrier + C.warpgroups,
  };
  static_assert(kNamedBarriers <= 16);

  unsigned memory;  // shared_address, 1024-byte aligned

  // Stage of the round's query tile, and the phase parity of its barriers.
  static __device__ int query_stage(int group, unsigned round) { return round % C.query_stages * C.warpgroups + group; }
  static __device__ unsigned query_phase(unsigned round) { return round / C.query_stages % 2; }

  __device__ QTile q(int group, unsigned round) const { return {memory + query_stage(group, round) * QTile::kBytes}; }
  __device__ DoutTile dout(int group, unsigned round) const {
    return {memory + kDouts + query_stage(group, round) * DoutTile::kBytes};
  }
  __device__ KTile k(int stage) const { return {memory + kKeys + stage * KTile::kBytes}; }
  __device__ VTile v(int stage) const { return {memory + kValues + stage * VTile::kBytes}; }
  __device__ BiasTile bias(int stage, int group) const {
    return {memory + kBiases + (stage * C.warpgroups + group) * BiasTile::kBytes};
  }
  __device__ unsigned mask_box(int stage, int group) const {
    return memory + kMasks + (stage * C.warpgroups + group) * kMaskBitsBytes;
  }
  // key: the first key of the tile.
  __device__ KeyMaskTile mask(int stage, int group, int key, bool has_rows) const {
    return {mask_box(stage, group), key, key, has_rows};
  }
  // The key tile of the stage, with a mask tensor.
  __device__ ListedMaskTile& listed_tile(int stage) const {
    return static_cast<ListedMaskTile*>(__cvta_shared_to_generic(memory + kListedTiles))[stage];
  }
  __device__ unsigned stats_address(int group, unsigned round) const {
    return memory + kStats + query_stage(group, round) * kStatsStageBytes;
  }
  __device__ const float* stats(int group, unsigned round) const {
    return static_cast<const float*>(__cvta_shared_to_generic(stats_address(group, round)));
  }

  // Properties of the query tile's head that options need. They are written when the TileInfo is.
  __device__ StepInfo& step_info(int group, unsigned round) const {
    return *static_cast<StepInfo*>(__cvta_shared_to_generic(stats_address(group, round) + kStatsBytes));
  }

  // Written before the arrival on q_full, and therefore visible to threads that have waited for q_full.
  __device__ TileInfo& info(int group, unsigned round) const {
    return static_cast<TileInfo*>(
        __cvta_shared_to_generic(memory + kTileInfoBegin))[round % num_tile_infos(C) * C.warpgroups + group];
  }

  __device__ unsigned k_full(int stage) const { return memory + kBarriers + 8 * stage; }
  __device__ unsigned k_empty(int stage) const { return k_full(C.key_stages + stage); }
  __device__ unsigned v_full(int stage) const { return k_full(2 * C.key_stages + stage); }
  __device__ unsigned v_empty(int stage) const { return v_full(C.value_stages + stage); }
  __device__ unsigned q_full(int group, unsigned round) const {
    return v_full(2 * C.value_stages + query_stage(group, round));
  }
  __device__ unsigned q_empty(int group, unsigned round) const { return q_full(group, round) + 8 * kQueryStages; }

  // Called by one thread before the CTA synchronises.
  __device__ void init() const {
    constexpr unsigned kWarps = kWarpgroupThreads / 32;
    for (int n = 0; n < C.key_stages; ++n)
      mbarrier_init(k_full(n), 1), mbarrier_init(k_empty(n), kWarps * C.warpgroups);
    for (int n = 0; n < C.value_stages; ++n)
      mbarrier_init(v_full(n), 1), mbarrier_init(v_empty(n), kWarps * C.warpgroups);
    for (int n = 0; n < C.warpgroups; ++n)
      for (unsigned round = 0; round < C.query_stages; ++round)
        mbarrier_init(q_full(n, round), 1), mbarrier_init(q_empty(n, round), kWarps);
    mbarrier_init_fence();
  }
};

}  // namespace cuflash
