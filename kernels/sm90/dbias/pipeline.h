// Shared memory layout of the dBias kernel, and the mbarriers between its producer and its consumers.
//
//   Q and K, or dO and V, of each stage | bias of each warpgroup | mask of each step | row statistics of each step and
//   warpgroup | DbiasStep of each step and warpgroup | DbiasTask: two for the consumers, one of the producer | mbarriers
//
//   full, empty            of a stage: TMA has filled it; one arrival per consumer warp releases it
//   step_full, step_empty  likewise for the coordinates, row statistics and mask of a step
//   bias_full, bias_empty  likewise for the bias of a task
#pragma once

#include "portable/backward/workspace.h"
#include "ptx/barrier.h"
#include "sm90/key_mask_tile.h"
#include "sm90/ring.h"
#include "sm90/step_info.h"
#include "sm90/tile_info.h"
#include "tile/swizzled.h"

namespace cuflash {

enum class DbiasStepKind : int {
  visit,      // adds dS of a query tile to the sums
  new_task,   // the first visit of a task: stores the sums of the previous task, then adds as visit does
  zeros,      // a task without visits: stores zeros, whatever the sums hold
  last_task,  // there are no more tasks: the sums are stored
};

// One step of the consumers. info: as in the dQ kernel; begin is the first of the step's tiles of 64 keys.
struct DbiasStep {
  TileInfo info;
  DbiasStepKind kind;
  int number;  // number of the task
};
static_assert(sizeof(DbiasStep) <= kTileInfoBytes);

// A tile of the bias, or one part of the (batch, head) pairs that share it. b and h are 0 in dimensions that share the
// bias.
struct DbiasTask {
  int b, h, row, key;
  int number;  // parts of a tile follow each other
  int end;     // used by the producer: end of the task's (batch, head) pairs
};
static_assert(sizeof(DbiasTask) == kDbiasTaskBytes);

template <Sm90DbiasConfig C>
struct DbiasPipeline {
  static constexpr BackwardConfig kPortable = portable_view(score_config(C));
  static constexpr int kHalves = C.tile_k / 64;  // tiles of 64 keys
  template <int kDim>
  using RowsOf = SwizzledTile<kWarpgroupRows, kDim>;
  template <int kDim>
  using KeysOf = SwizzledTile<C.tile_k, kDim>;
  using BiasTile = SwizzledTile<kWarpgroupRows, 64>;
  static constexpr int kStatsBytes = row_stats_bytes(kPortable), kStatsStageBytes = row_stats_stage_bytes(kPortable);

  static constexpr int kBiases = C.stages * dbias_stage_bytes(C);
  static constexpr int kMasks = kBiases + C.warpgroups * bias_tile_bytes(C);
  static constexpr int kStats = kMasks + kDbiasSteps * mask_bytes(C);
  static constexpr int kStepBegin = kStats + kDbiasSteps * C.warpgroups * kStatsStageBytes;
  static constexpr int kTaskBegin = kStepBegin + kDbiasSteps * C.warpgroups * kTileInfoBytes;
  static constexpr int kBarriers = kTaskBegin + kDbiasTasks * kDbiasTaskBytes;
  static_assert(kStatsBytes + int{sizeof(StepInfo)} <= kStatsStageBytes && kStats % kTmaAlignment == 0);
  static_assert(kBarriers + 8 * num_barriers(C) == shared_bytes(C));

  // Named barriers. ID 0 is __syncthreads.
  enum NamedBarrier : int { kConsumerBarrier = 1 };

  unsigned memory;  // shared_address, 1024-byte aligned

  // Q or dO of a warpgroup, and K or V.
  template <int kDim>
  __device__ RowsOf<kDim> rows(int stage, int group) const {
    return {memory + stage * dbias_stage_bytes(C) + group * RowsOf<kDim>::kBytes};
  }
  template <int kDim>
  __device__ KeysOf<kDim> keys(int stage) const {
    return {memory + stage * dbias_stage_bytes(C) + C.warpgroups * RowsOf<kDim>::kBytes};
  }
  __device__ BiasTile bias(int group, int half) const {
    return {memory + kBiases + group * bias_tile_bytes(C) + half * BiasTile::kBytes};
  }
  __device__ unsigned mask_box(int step, int group) const {
    return memory + kMasks + step * mask_bytes(C) + group * kMaskBitsBytes;
  }
  // key: the first of the 64 keys.
  __device__ KeyMaskTile mask(int step, int group, int key, bool has_rows) const {
    return {mask_box(step, group), key, key, has_rows};
  }
  __device__ unsigned stats_address(int step, int group) const {
    return memory + kStats + (step * C.warpgroups + group) * kStatsStageBytes;
  }
  __device__ const float* stats(int step, int group) const {
    return static_cast<const float*>(__cvta_shared_to_generic(stats_address(step, group)));
  }
  // Properties of the step's head that ALiBi and dropout need.
  __device__ StepInfo& head_info(int step, int group) const {
    return *static_cast<StepInfo*>(__cvta_shared_to_generic(stats_address(step, group) + kStatsBytes));
  }
  __device__ DbiasStep& step(int step, int group) const {
    return *static_cast<DbiasStep*>(
        __cvta_shared_to_generic(memory + kStepBegin + (step * C.warpgroups + group) * kTileInfoBytes));
  }
  __device__ DbiasTask& task(unsigned slot) const {
    return static_cast<DbiasTask*>(__cvta_shared_to_generic(memory + kTaskBegin))[slot];
  }

  __device__ unsigned full(int stage) const { return memory + kBarriers + 8 * stage; }
  __device__ unsigned empty(int stage) const { return full(C.stages + stage); }
  __device__ unsigned step_full(int step) const { return full(2 * C.stages + step); }
  __device__ unsigned step_empty(int step) const { return step_full(kDbiasSteps + step); }
  __device__ unsigned bias_full() const { return step_full(2 * kDbiasSteps); }
  __device__ unsigned bias_empty() const { return bias_full() + 8; }

  // Called by one thread before the CTA synchronises.
  __device__ void init() const {
    constexpr unsigned kWarps = C.warpgroups * kWarpgroupThreads / 32;
    for (int n = 0; n < C.stages; ++n) mbarrier_init(full(n), 1), mbarrier_init(empty(n), kWarps);
    for (int n = 0; n < kDbiasSteps; ++n) mbarrier_init(step_full(n), 1), mbarrier_init(step_empty(n), kWarps);
    mbarrier_init(bias_full(), 1), mbarrier_init(bias_empty(), kWarps);
    mbarrier_init_fence();
  }
};

}  // namespace cuflash
