// Shared memory layout of the backward kernel, and the barriers between its producer and its consumers.
//
//   K | V | finite K, or two tiles of P | Q and dO of each stage | dS, two tiles with dQ | bias and mask
//   of each stage | row stats of each stage,
//   and its StepInfo with options | task coordinates | mbarriers
//
//   k_full, v_full     TMA has filled K or V, once per key tile, and the task coordinates are written
//   k_empty            one arrival per consumer warp, and with a loader per dQ warp: it no longer reads K and V
//   q_full, dout_full  TMA has filled Q and row statistics, or dO, of a stage; the consumers wait
//   q_empty            one arrival per consumer warp; the producer waits
//   raw_full           replaces both q_full and dout_full as the TMA target if the producer has to zero rows first; the
//                      producer then arrives on q_full and dout_full itself
//   near_end           with a loader: two query tiles of the task are left, so it is time to claim the next task
//
// Hand-over of dS and P between warpgroups uses named barriers, which are cheaper than mbarriers.
#pragma once

#include "ptx/barrier.h"
#include "sm90/backward/key_task.h"
#include "sm90/key_mask_tile.h"
#include "sm90/mask_tiles.h"
#include "sm90/step_info.h"
#include "tile/swizzled.h"

namespace cuflash {

template <Sm90BackwardConfig C>
struct BackwardPipeline {
  static constexpr int kTileK = tile_k_of(C);
  using KTile = SwizzledTile<kTileK, C.dim_qk>;
  using VTile = SwizzledTile<kTileK, C.dim_v>;
  using QTile = SwizzledTile<C.tile_q, C.dim_qk>;
  using DoutTile = SwizzledTile<C.tile_q, C.dim_v>;
  using DsTile = SwizzledTile<C.tile_q, kTileK>;  // one row per query
  static constexpr int kStatsBytes = row_stats_bytes(portable_view(C)),
                       kStatsStageBytes = row_stats_stage_bytes(portable_view(C));

  static constexpr int kValues = KTile::kBytes;
  static constexpr int kFiniteK = kValues + VTile::kBytes;
  static constexpr int kQueries = kFiniteK + finite_k_bytes(C) + num_p_tiles(C) * DsTile::kBytes;
  static constexpr int kDouts = kQueries + C.stages * QTile::kBytes;
  static constexpr int kDsOffset = kDouts + C.stages * DoutTile::kBytes;
  static constexpr int kBiases = kDsOffset + num_ds_tiles(C) * DsTile::kBytes;
  static constexpr int kMasks = kBiases + C.stages * bias_tile_bytes(C);
  static constexpr int kStats = kMasks + C.stages * mask_bytes(C);
  static constexpr int kTaskOffset = kStats + stats_bytes(C);
  static constexpr int kBarriers = kTaskOffset + kTaskSlots * kTaskBytes;
  static_assert(C.options == 0 || kStatsBytes + int{sizeof(StepInfo)} <= kStatsStageBytes);
  static_assert(kBarriers + 8 * num_barriers(C) == shared_bytes(C) && kStats % kTmaAlignment == 0 &&
                kTaskOffset % 16 == 0);

  unsigned memory;  // shared_address, 1024-byte aligned

  __device__ KTile k() const { return {memory}; }
  __device__ VTile v() const { return {memory + kValues}; }
  // K with non-finite elements zeroed, which dQ is computed from if K has such elements.
  __device__ KTile finite_k() const { return {memory + kFiniteK}; }
  // With split_dk_dv: P of a query tile for the other warpgroup, 16 bytes of every thread side by side.
  __device__ unsigned p_tile(int tile) const { return memory + kFiniteK + tile * DsTile::kBytes; }
  __device__ QTile q(int stage) const { return {memory + kQueries + stage * QTile::kBytes}; }
  __device__ DoutTile dout(int stage) const { return {memory + kDouts + stage * DoutTile::kBytes}; }
  __device__ DsTile ds_tile(int tile) const { return {memory + kDsOffset + tile * DsTile::kBytes}; }
  __device__ DsTile bias(int stage) const { return {memory + kBiases + stage * DsTile::kBytes}; }
  // Mask bits of 128 keys.
  __device__ unsigned mask_box(int stage, int box) const {
    return memory + kMasks + stage * mask_bytes(C) + box * kMaskBitsBytes;
  }
  // k_first: first key of the task.
  __device__ KeyMaskTile mask(int stage, int group, int k_first, bool has_rows) const {
    return {mask_box(stage, 0), k_first, k_first + group * kWarpgroupRows, has_rows};
  }
  __device__ unsigned stats_address(int stage) const { return memory + kStats + stage * kStatsStageBytes; }
  __device__ const float* stats(int stage) const {
    return static_cast<const float*>(__cvta_shared_to_generic(stats_address(stage)));
  }
  __device__ StepInfo& step_info(int stage) const {
    return *static_cast<StepInfo*>(__cvta_shared_to_generic(stats_address(stage) + kStatsBytes));
  }
  __device__ KeyTask& task(int slot) const {
    return *static_cast<KeyTask*>(__cvta_shared_to_generic(memory + kTaskOffset + slot * kTaskBytes));
  }

  __device__ unsigned k_full() const { return memory + kBarriers; }
  __device__ unsigned v_full() const { return k_full() + 8; }
  __device__ unsigned raw_full() const { return k_full() + 16; }
  __device__ unsigned k_empty() const { return k_full() + 24; }
  __device__ unsigned q_full(int stage) const { return k_full() + 32 + 8 * stage; }
  __device__ unsigned dout_full(int stage) const { return q_full(C.stages + stage); }
  __device__ unsigned q_empty(int stage) const { return q_full(2 * C.stages + stage); }
  __device__ unsigned near_end() const { return q_full(3 * C.stages); }

  // Called by one thread before the CTA synchronises.
  __device__ void init() const {
    mbarrier_init(k_full(), 1), mbarrier_init(v_full(), 1), mbarrier_init(raw_full(), 2);
    mbarrier_init(k_empty(), kWarpgroupThreads / 32 * (consumer_warpgroups(C) + (has_loader(C) ? 1 : 0)));
    if constexpr (has_loader(C)) mbarrier_init(near_end(), 1);
    for (int n = 0; n < C.stages; ++n) {
      mbarrier_init(q_full(n), 1), mbarrier_init(dout_full(n), 1);
      mbarrier_init(q_empty(n), kWarpgroupThreads / 32 * consumer_warpgroups(C));
    }
    mbarrier_init_fence();
  }

  // Named barriers: the first ID of each kind. ID 0 is __syncthreads.
  enum NamedBarrier : int {
    kDsWrittenBarrier = 1,                                         // + buffer: dS of all warpgroups may be read
    kDsReadBarrier = kDsWrittenBarrier + kDsStages,                // + buffer and group: dS may be overwritten
    kConsumerBarrier = kDsReadBarrier + kDsStages * C.warpgroups,  // all consumer warpgroups
    kProducerBarrier,                                              // the producer warpgroup
    kDqBarrier,                                                    // with a loader: the dQ warpgroup
    kTurnBarrier = kDqBarrier + (has_loader(C) ? 1 : 0),           // + group: it may issue dP and dV
    kKeyTurnBarrier = kTurnBarrier + C.warpgroups,                 // + group, of two: it may issue dK and S
    kPWrittenBarrier = kDqBarrier,                                 // + buffer: P may be read, with split_dk_dv
    kPReadBarrier = kPWrittenBarrier + kDsStages,                  // + buffer: P may be overwritten
    kNamedBarriers = split_dk_dv(C) ? kPReadBarrier + kDsStages : kKeyTurnBarrier + (C.warpgroups == 2 ? 2 : 0),
  };
  static_assert(kNamedBarriers <= 16);
  static constexpr int kPair = 2 * kWarpgroupThreads;  // threads of the two warpgroups that share a barrier
  static constexpr int kDsThreads = (C.warpgroups + 1) * kWarpgroupThreads;  // those that write and read dS
  static __device__ int ds_written(int buffer) { return kDsWrittenBarrier + buffer; }
  static __device__ int ds_read(int group, int buffer) { return kDsReadBarrier + buffer * C.warpgroups + group; }
  static __device__ int p_written(int buffer) { return kPWrittenBarrier + buffer; }
  static __device__ int p_read(int buffer) { return kPReadBarrier + buffer; }
};

}  // namespace cuflash
