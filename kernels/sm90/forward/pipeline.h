// Shared memory layout of the forward kernel, and the mbarriers between its producer and its consumers.
//
//   Q of each warpgroup, in 1 or 2 stages | K of each stage | V of each stage | O staging of each warpgroup |
//   bias of each stage and warpgroup | mask bits of each stage and warpgroup | TileInfo of each warpgroup | mbarriers |
//   tickets | listed tile of each stage, with a mask tensor
//
//   full       TMA has filled the stage; the consumers wait
//   empty      one arrival per consumer warp; the producer waits
//   v_raw_full replaces v_full as the TMA target if hidden values have to be zeroed first; the sanitizer warp of the
//              producer then arrives on v_full
#pragma once

#include "ptx/barrier.h"
#include "sm90/forward/bias_tiles.h"
#include "sm90/mask_tiles.h"
#include "sm90/ring.h"
#include "sm90/tile_info.h"
#include "tile/swizzled.h"

namespace cuflash {

template <Sm90ForwardConfig C>
struct Pipeline {
  using QTile = SwizzledTile<kWarpgroupRows, C.dim_qk>;
  using KTile = SwizzledTile<C.tile_k, C.dim_qk>;
  using VTile = SwizzledTile<C.tile_k, C.dim_v>;
  using OTile = SwizzledTile<kWarpgroupRows, staged_columns(C)>;
  using BiasTile = SwizzledTile<kWarpgroupRows, C.tile_k>;
  static constexpr int kQueryStages = query_stages(C);
  static constexpr int kKeys = kQueryStages * C.warpgroups * QTile::kBytes;
  static constexpr int kValues = kKeys + C.stages * KTile::kBytes;
  static constexpr int kStaged = kValues + C.stages * VTile::kBytes;
  static constexpr int kBiasTiles = kStaged + staged_bytes(C);
  static constexpr int kMaskTiles = kBiasTiles + C.stages * C.warpgroups * bias_tile_bytes(C);
  static constexpr int kTileInfoBegin = kMaskTiles + C.stages * C.warpgroups * mask_tile_bytes(C);
  static constexpr int kBarriers = kTileInfoBegin + num_tile_infos(C) * C.warpgroups * kTileInfoBytes;
  static constexpr int kTickets = kBarriers + 8 * num_barriers(C);
  static constexpr int kListedTiles = kTickets + ticket_bytes(C);
  static_assert(kListedTiles + listed_tile_bytes(C) == shared_bytes(C) && kMaskTiles % 128 == 0);

  // Named barriers: the first ID of each kind. ID 0 is __syncthreads.
  enum NamedBarrier : int {
    kPingPongBarrier = 1,                             // + group: the warpgroup may issue wgmma
    kStoreBarrier = kPingPongBarrier + C.warpgroups,  // + group: staging of O is free, is written
    kNamedBarriers = kStoreBarrier + C.warpgroups,
  };
  static_assert(kNamedBarriers <= 16);

  unsigned memory;  // shared_address, 1024-byte aligned

  // Stage of the round's query tile, and the phase parity of its barriers.
  static __device__ int query_stage(int group, unsigned round) { return round % kQueryStages * C.warpgroups + group; }
  static __device__ unsigned query_phase(unsigned round) { return round / kQueryStages % 2; }

  __device__ QTile q(int group, unsigned round) const { return {memory + query_stage(group, round) * QTile::kBytes}; }
  __device__ KTile k(int stage) const { return {memory + kKeys + stage * KTile::kBytes}; }
  __device__ VTile v(int stage) const { return {memory + kValues + stage * VTile::kBytes}; }
  __device__ OTile o(int group) const { return {memory + kStaged + group * OTile::kBytes}; }  // with kStoreBySmem

  // The bias tile of a stage, with kTmaBias.
  __device__ BiasTile bias(int stage, int group) const {
    return {memory + kBiasTiles + (stage * C.warpgroups + group) * bias_tile_bytes(C)};
  }
  // With a mask tensor, every stage of K has the mask bits of its key tile, which are not loaded if the warpgroup sees
  // all of it, and the number of the tile.
  __device__ unsigned mask(int stage, int group) const {
    return memory + kMaskTiles + (stage * C.warpgroups + group) * mask_tile_bytes(C);
  }
  __device__ ListedMaskTile& listed_tile(int stage) const {
    return static_cast<ListedMaskTile*>(__cvta_shared_to_generic(memory + kListedTiles))[stage];
  }

  // Written before the arrival on q_full, and therefore visible to threads that have waited for q_full.
  using Info = typename TileInfoFor<splits_keys(C), has_full_run(C)>::Type;
  __device__ Info& info(int group, unsigned round) const {
    return static_cast<Info*>(
        __cvta_shared_to_generic(memory + kTileInfoBegin))[round % num_tile_infos(C) * C.warpgroups + group];
  }

  __device__ unsigned k_full(int stage) const { return memory + kBarriers + 8 * stage; }
  __device__ unsigned k_empty(int stage) const { return k_full(C.stages + stage); }
  __device__ unsigned v_full(int stage) const { return k_full(2 * C.stages + stage); }
  __device__ unsigned v_empty(int stage) const { return k_full(3 * C.stages + stage); }
  __device__ unsigned v_raw_full(int stage) const { return k_full(4 * C.stages + stage); }
  __device__ unsigned q_full(int group, unsigned round) const {
    return k_full(5 * C.stages + query_stage(group, round));
  }
  __device__ unsigned q_empty(int group, unsigned round) const {
    return q_full(group, round) + 8 * kQueryStages * C.warpgroups;
  }

  // bias_full: the bias tile of a stage has arrived.
  __device__ unsigned bias_full(int stage) const {
    return q_full(0, 0) + 8 * (2 * kQueryStages * C.warpgroups + stage);
  }
  __device__ unsigned bias_empty(int stage) const { return bias_full(C.stages + stage); }

  // The ticket of a query tile, with kTileList: the thread that draws it writes it, and all producer threads that use
  // it release it. Its barriers complete a phase in every round.
  static constexpr unsigned kTicketReaders = 1 + C.warpgroups + 1;
  __device__ unsigned ticket_full() const { return memory + kTickets; }
  __device__ unsigned ticket_empty() const { return ticket_full() + 8; }
  __device__ volatile unsigned& ticket() const {
    return *static_cast<volatile unsigned*>(__cvta_shared_to_generic(memory + kTickets + 2 * 8));
  }

  // Called by one thread before the CTA synchronises.
  __device__ void init() const {
    constexpr unsigned kWarps = kWarpgroupThreads / 32;
    for (int n = 0; n < C.stages; ++n) {
      mbarrier_init(k_full(n), 1), mbarrier_init(k_empty(n), kWarps * C.warpgroups);
      mbarrier_init(v_full(n), 1), mbarrier_init(v_empty(n), kWarps * C.warpgroups);
      mbarrier_init(v_raw_full(n), 1);
      if constexpr (has_bias_tiles(C))
        mbarrier_init(bias_full(n), 1), mbarrier_init(bias_empty(n), kWarps * C.warpgroups);
    }
    for (int n = 0; n < C.warpgroups; ++n)
      for (unsigned round = 0; round < kQueryStages; ++round)
        mbarrier_init(q_full(n, round), 1), mbarrier_init(q_empty(n, round), kWarps);
    if constexpr (lists_tiles(C)) mbarrier_init(ticket_full(), 1), mbarrier_init(ticket_empty(), kTicketReaders);
    mbarrier_init_fence();
  }
};

}  // namespace cuflash
