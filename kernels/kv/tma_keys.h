// K and V pipeline of the sm90 kernel: the producer warp loads TMA boxes into a ring of stages, consumer warps release
// them.
//
//   producer    wait on `empty` of a stage | K, then V: wait until few loads are in flight | expect bytes | load boxes,
//               one lane each
//   consumers   wait on `full` of K | patch rows if needed: new rows, and zeros for values that no query sees | scores
//               | wait on `full` of V | O += P V | arrive on `empty`
//
// If the first tiles do not depend on lengths, the producer loads them in the prologue, before the lengths, and with
// them the work item, are known.
//
// A box may contain rows that no query sees, and a prologue load even pages without keys. For K this is harmless,
// because their scores are masked; for V it is not, because a weight of zero would not keep a NaN out of O.
#pragma once

#include "kv/loads.h"
#include "kv/work.h"
#include "ptx/barrier.h"
#include "ptx/grid.h"
#include "ptx/tma.h"
#include "ptx/warpgroup.h"
#include "sm90/consumer_sync.h"
#include "sm90/ring.h"
#include "tile/swizzled.h"

namespace cuflash {

template <KvConfig C>
struct TmaKeys {
  static constexpr Element E = C.element;
  static constexpr int kConsumerThreads = consumer_threads(C);
  using KTile = SwizzledTile<C.tile_k, C.dim_qk>;
  using VTile = SwizzledTile<C.tile_k, C.dim_v>;

  const KvWork<C>& work;
  const Sm90KvParams& p;
  // Producer: what it loaded in the prologue.
  struct Prefetched {
    int tiles = 0;       // key tiles in flight
    EntryRow from = {};  // source of the lane's box, valid if the split takes key tiles in the usual order
  };
  Prefetched prefetched;
  Ring<C.stages> ring{};
  // A tile is loaded in parts: K, and V unless values are columns of keys. Q K^T overlaps with the load of V.
  static constexpr int kParts = parts_of_tile(C);
  Ring<kParts * C.stages> landed{};  // used by the producer in limit_in_flight

  __device__ TmaKeys(const KvWork<C>& work, const Sm90KvParams& p, const Prefetched& prefetched)
      : work(work), p(p), prefetched(prefetched) {}

  __device__ auto q_tile() const {
    if constexpr (by_warpgroups(C)) return SwizzledTile<C.tile_q, C.dim_qk>{shared_address(work.queries_memory())};
    else return work.q_tile();
  }
  __device__ static KTile k_tile(unsigned char* memory, int stage) {
    return {shared_address(KvWork<C>::stage_memory(memory, stage))};
  }
  __device__ static auto v_tile(unsigned char* memory, int stage) {
    if constexpr (C.v_in_k) return k_tile(memory, stage);
    else return VTile{k_tile(memory, stage).address + KTile::kBytes};
  }
  __device__ KTile k_tile(int stage) const { return k_tile(work.memory, stage); }
  __device__ auto v_tile(int stage) const { return v_tile(work.memory, stage); }
  __device__ int value_column() const { return C.v_in_k ? work.p.v_column : 0; }
  // Mbarriers of a stage: a part has landed (full), and all consumers have read the stage (empty).
  __device__ static unsigned full(unsigned char* memory, int stage, int part = 0) {
    return shared_address(KvWork<C>::stage_info(memory, stage)) + static_cast<unsigned>(part) * 16;
  }
  __device__ unsigned full(int stage, int part = 0) const { return full(work.memory, stage, part); }
  __device__ unsigned empty(int stage) const { return full(stage) + 8; }
  __device__ __forceinline__ static void init_full(unsigned char* memory, int stage) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) mbarrier_init(full(memory, stage, part), 1);
  }

  // Called by the producer: mbarriers of the prologue loads are initialised before these are issued, the others after.
  static constexpr int kPrologueStages = 2;
  __device__ __forceinline__ static void init_prologue_barriers(unsigned char* memory) {
    if (lane_id() == 0) {
      for (int n = 0; n < kPrologueStages; ++n) init_full(memory, n);
      mbarrier_init_fence();
    }
    __syncwarp();
  }
  __device__ __forceinline__ static void init_barriers(unsigned char* memory) {
    if (lane_id() == 0) {
      for (int n = kPrologueStages; n < C.stages; ++n) init_full(memory, n);
      for (int n = 0; n < C.stages; ++n) mbarrier_init(full(memory, n) + 8, kConsumerThreads / 32);
      mbarrier_init_fence();
    }
    __syncwarp();
  }

  __device__ static bool is_consumer() { return static_cast<int>(threadIdx.x) < kConsumerThreads; }
  __device__ static bool is_producer() {
    return static_cast<int>(threadIdx.x) >= kConsumerThreads &&
           (!uses_setmaxnreg(C) || static_cast<int>(threadIdx.x) < active_threads(C));
  }

  // With uses_setmaxnreg(C), all threads execute one of these: consumers the first, the producer warpgroup the second.
  __device__ static void setmaxnreg_inc() { cuflash::setmaxnreg_inc<consumer_registers(C)>(); }
  __device__ static void setmaxnreg_dec() { cuflash::setmaxnreg_dec<producer_registers(C)>(); }

  // Range of the cached rows that some query sees.
  __device__ int begin_row() const { return work.sequence.pad + work.seen.begin; }
  __device__ int end_row() const { return min(work.sequence.pad + work.seen.end, work.sequence.old_end); }

  // Whether sequence b is entry b of the cache and every key tile is one box.
  __device__ static bool is_contiguous(const Sm90KvParams& p) { return p.prologue.page_size == 0; }
  // If a tile has several boxes, each lane loads one, and the lanes of the warp cover several tiles.
  __device__ static int lane_tile(const Sm90KvParams& p) { return lane_id() >> p.prologue.box_bits; }
  __device__ static int lane_box(const Sm90KvParams& p) { return lane_id() & ((1 << p.prologue.box_bits) - 1); }
  __device__ static int box_rows(const Sm90KvParams& p) { return C.tile_k >> p.prologue.box_bits; }

  // Bytes of `rows` rows of K (part 0) or V (part 1).
  __device__ static unsigned part_bytes(int part, int rows) {
    constexpr unsigned kKeyBytes = static_cast<unsigned>(KTile::kBytes) / C.tile_k,
                       kValueBytes = static_cast<unsigned>(VTile::kBytes) / C.tile_k;
    return static_cast<unsigned>(rows) * (part == 0 ? kKeyBytes : kValueBytes);
  }
  __device__ __forceinline__ static void load_box(const Sm90KvParams& p, unsigned char* memory, int head_k, int stage,
                                                  int part, int box, const EntryRow& from, EvictionPolicy policy) {
    static_assert(KTile::kPanelBytes == VTile::kPanelBytes);
    const TensorMap& map = part == 0 ? p.k : p.v;
    const int head = head_k * (part == 0 ? p.prologue.k_head : p.prologue.v_head),
              entry = static_cast<int>(from.entry) * (part == 0 ? p.prologue.k_entry : p.prologue.v_entry),
              panels = part == 0 ? KTile::kPanels : VTile::kPanels;
    const unsigned to = part == 0 ? k_tile(memory, stage).address : v_tile(memory, stage).address;
#pragma unroll
    for (int panel = 0; panel < panels; ++panel)
      tma_load(to + panel * KTile::kPanelBytes + box * box_rows(p) * kPanelRowBytes, map, full(memory, stage, part),
               panel * kPanelColumns, from.row, head, entry, policy);
  }
  // Expects the bytes of all parts at once: lanes issue their boxes one after the other, and a second round is slower.
  __device__ __forceinline__ static void expect_bytes(unsigned char* memory, int stage, int rows) {
    if (lane_id() == 0) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        mbarrier_arrive_expect_tx(full(memory, stage, part), part_bytes(part, rows));
    }
    __syncwarp();
  }
  __device__ __forceinline__ static void load_parts(const Sm90KvParams& p, unsigned char* memory, int head_k, int stage,
                                                    int box, const EntryRow& from, EvictionPolicy policy) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) load_box(p, memory, head_k, stage, part, box, from, policy);
  }
  // Lane 0 loads one part of a tile that is one box. No argument differs between lanes: ptxas would make a loop over
  // lanes of a TMA load with divergent arguments.
  __device__ __forceinline__ static void load_whole_tile(const Sm90KvParams& p, unsigned char* memory,
                                                         const WorkItem& item, int stage, int part, int row,
                                                         EvictionPolicy policy) {
    if (lane_id() != 0) return;
    mbarrier_arrive_expect_tx(full(memory, stage, part), part_bytes(part, C.tile_k));
    load_box(p, memory, item.head_k, stage, part, 0, {item.b, row}, policy);
  }
  // Producer prologue: loads the first tiles before lengths are known, if they do not depend on lengths. With pages,
  // the lanes look up the pages of further tiles too.
  __device__ __forceinline__ static Prefetched load_prologue(const Sm90KvParams& p, unsigned char* memory,
                                                             const WorkItem& item) {
    if (item.split >= p.prologue.splits) return {};
    const EvictionPolicy policy = p.prologue.row_tiles == 1 ? evict_first() : evict_normal();
    if (is_contiguous(p)) {
#pragma unroll 1
      for (int n = 0; n < p.prologue.tiles; ++n) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          load_whole_tile(p, memory, item, n, part, (item.split + n) * C.tile_k, policy);
      }
      return {p.prologue.tiles, {}};
    }
    const int row = (item.split + lane_tile(p) * p.prologue.splits) * C.tile_k + lane_box(p) * box_rows(p);
    const EntryRow from = entry_row(p.prologue, item.b, row);
#pragma unroll 1
    for (int n = 0; n < p.prologue.tiles; ++n) {
      expect_bytes(memory, n, C.tile_k);
      if (lane_tile(p) == n) load_parts(p, memory, item.head_k, n, lane_box(p), from, policy);
    }
    __syncwarp();
    return {p.prologue.tiles, from};
  }
  // Drains prologue loads that no consumer will read, before the stage is reused or the CTA exits.
  __device__ __forceinline__ void drain_unused() const {
    for (int n = work.is_active() ? work.count() : 0; n < prefetched.tiles; ++n) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) mbarrier_wait(full(n, part), 0);
    }
  }

  // L2 eviction policy of K and V. With several row tiles other CTAs read the same keys.
  __device__ __forceinline__ EvictionPolicy policy() const {
    if (p.prologue.row_tiles != 1) return evict_normal();
    return work.count() >= p.many_tiles && item_number(work.p, work.item) < p.first_wave_ctas ? evict_first_sixteenth()
                                                                                              : evict_first();
  }
  // Producer mainloop. When all loads are issued, CTAs of the next kernel may start and wait for the end of this one.
  __device__ __forceinline__ void load_all() {
    if (C.fast_decode && is_contiguous(p)) load_contiguous();
    else load_paged();
    griddepcontrol_launch_dependents();
  }
  __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty(ring.stage), ring.phase ^ 1); }
  // Before load n (counted in parts): waits until fewer than p.loads_in_flight are in flight. If all stages may be in
  // flight, wait_empty() suffices.
  __device__ __forceinline__ void limit_in_flight(int n) {
    if (n < p.loads_in_flight || p.loads_in_flight == kParts * C.stages) return;
    mbarrier_wait(full(landed.stage / kParts, landed.stage % kParts), landed.phase);
    landed.advance();
  }
  __device__ __forceinline__ void load_contiguous() {
    const EvictionPolicy policy = this->policy();
#pragma unroll 1
    for (int n = 0; n < work.count(); ++n, ring.advance()) {
      if (n < prefetched.tiles) continue;
      wait_empty();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        limit_in_flight(n * kParts + part);
        load_whole_tile(p, work.memory, work.item, ring.stage, part, work.first_key(n), policy);
      }
    }
  }
  // Looks up pages for as many tiles at once as the lanes have boxes.
  __device__ __forceinline__ void load_paged() {
    const EvictionPolicy policy = this->policy();
    const int tiles = 32 >> p.prologue.box_bits;
    const bool round_robin = work.tiles.first == work.item.split && work.tiles.step == work.p.base_splits;
    const bool known = prefetched.tiles != 0 && !is_contiguous(p) && round_robin;
#pragma unroll 1
    for (int first = 0; first < work.count(); first += tiles) {
      const bool has_tile = first + lane_tile(p) < work.count();
      const int row =
          has_tile ? work.sequence.pad + work.first_key(first + lane_tile(p)) + lane_box(p) * box_rows(p) : 0;
      const bool exists = has_tile && row + box_rows(p) > begin_row() && row < end_row();
      EntryRow from = prefetched.from;
      if (exists && !(known && first == 0)) from = entry_row(p.prologue, work.item.b, row);
#pragma unroll 1
      for (int n = 0; n < tiles && first + n < work.count(); ++n, ring.advance()) {
        if (first + n < prefetched.tiles) continue;
        const bool mine = exists && lane_tile(p) == n;
        const int rows = static_cast<int>(__popc(__ballot_sync(0xffffffffu, mine))) * box_rows(p);
        wait_empty();
#pragma unroll
        for (int part = 0; part < kParts; ++part) limit_in_flight((first + n) * kParts + part);
        expect_bytes(work.memory, ring.stage, rows);
        if (mine) load_parts(p, work.memory, work.item.head_k, ring.stage, lane_box(p), from, policy);
      }
    }
  }

  __device__ bool is_fully_cached(int n) const {
    const int row = work.sequence.pad + work.first_key(n);
    return row >= begin_row() && row + C.tile_k <= end_row();
  }
  // Consumers write the rows of the tile that are not in the cache. All readers of the stage's previous tile have
  // released it to the producer, and `full` has passed that on to all consumers. racecheck does not track this chain,
  // but it sees the first barrier.
  __device__ __forceinline__ void patch_rows(int n) const {
    wait_for_values();
    named_barrier_sync(kConsumerBarrier, kConsumerThreads);
    const int k_first = work.first_key(n);
    const auto is_seen = [&](int row) { return k_first + row >= work.seen.begin && k_first + row < work.seen.end; };
    const auto is_new = [&](int row) {
      return is_seen(row) && work.sequence.pad + k_first + row >= work.sequence.old_end;
    };
    constexpr int kPieces = C.dim_v / 8;
    constexpr RealOf<E> kZeros[8] = {};
#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x); n < C.tile_k * kPieces; n += kConsumerThreads)
      if (!is_seen(n / kPieces))
        put_eight<E>(v_tile(ring.stage), n / kPieces, value_column() + n % kPieces * 8, kZeros);
    if constexpr (!C.fast_decode)
      load_new<false, kConsumerThreads, E, C.tile_k, C.dim_qk>(k_tile(ring.stage), is_new, work.p, work.sequence,
                                                               work.item, k_first);
    if constexpr (!C.fast_decode && !C.v_in_k)
      load_new<true, kConsumerThreads, E, C.tile_k, C.dim_v>(v_tile(ring.stage), is_new, work.p, work.sequence,
                                                             work.item, k_first);
    async_proxy_fence();
    named_barrier_sync(kConsumerBarrier, kConsumerThreads);
  }
  __device__ __forceinline__ void wait_for_values() const { mbarrier_wait(full(ring.stage, kParts - 1), ring.phase); }
  __device__ __forceinline__ void wait(int n) const {
    mbarrier_wait(full(ring.stage), ring.phase);
    if constexpr (by_warpgroups(C)) wait_for_values();
    if (__builtin_expect(!is_fully_cached(n), 0)) patch_rows(n);
  }
  // Waits until all consumers have read all keys and values.
  __device__ static void sync_consumers() { named_barrier_sync(kConsumerBarrier, kConsumerThreads); }
  __device__ __forceinline__ void release(int stage) const {
    __syncwarp();
    release_stage(empty(stage));
  }
  __device__ __forceinline__ void release_and_advance() {
    release(ring.stage);
    ring.advance();
  }
};

}  // namespace cuflash
