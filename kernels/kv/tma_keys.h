// Keys and values of a CTA come to shared memory as boxes of tensors, copied by a warp of their own (Hopper).
//
//   copying warp     wait until a stage is empty | K, then V: wait until few others are on their way | announce its bytes |
//                    one lane for each box
//   all others       wait for its keys | new rows, and zeros for values that nobody sees, where it has such rows | scores |
//                    wait for its values | use them | arrive on `empty`
//
// Where lengths do not decide which tiles are the first, these are on their way before they, and with them the work, are known.
//
// A box may hold rows that nobody sees, and of a first tile pages that no key is in. What they hold of keys does not matter,
// since their scores are replaced; of values it would, since a weight of zero would not keep a NaN out.
#pragma once

#include "kv/loads.h"
#include "kv/work.h"
#include "ptx/barrier.h"
#include "ptx/grid.h"
#include "ptx/tma.h"
#include "ptx/warpgroup.h"
#include "sm90/ring.h"
#include "tile/swizzled.h"

namespace cuflash {

template <KvConfig C>
struct TmaKeys {
  static constexpr Element E = C.element;
  static constexpr int kComputing = consumer_threads(C);
  // Numbered barriers: of those who compute; of all, where the copying warp arrives and does not wait: its barriers can be
  // waited for, its ticket is prepared.
  static constexpr int kBarrier = 1, kStarted = 2, kEnding = 3;
  using KTile = SwizzledTile<C.tile_k, C.dim_qk>;
  using VTile = SwizzledTile<C.tile_k, C.dim_v>;

  const KvWork<C>& work;
  const Sm90KvParams& p;
  // Of the copying warp, what was done before the work was known.
  struct Ahead {
    int tiles = 0;       // so many are on their way
    EntryRow from = {};  // what the lane has a box of, if tiles of keys follow each other as they usually do
  };
  Ahead ahead;
  Ring<C.stages> ring{};
  // A tile comes in parts: keys, and values where these are not columns of keys. Keys are multiplied while values come.
  static constexpr int kParts = parts_of_tile(C);
  Ring<kParts * C.stages> arrived{};  // of the copying warp: see wait_until_few

  __device__ TmaKeys(const KvWork<C>& work, const Sm90KvParams& p, const Ahead& ahead)
      : work(work), p(p), ahead(ahead) {}

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
  // Barriers of a stage: a part is there, and all have read it.
  __device__ static unsigned full(unsigned char* memory, int stage, int part = 0) {
    return shared_address(KvWork<C>::stage_info(memory, stage)) + static_cast<unsigned>(part) * 16;
  }
  __device__ unsigned full(int stage, int part = 0) const { return full(work.memory, stage, part); }
  __device__ unsigned empty(int stage) const { return full(stage) + 8; }
  __device__ __forceinline__ static void init_full(unsigned char* memory, int stage) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) mbarrier_init(full(memory, stage, part), 1);
  }

  // By the copying warp: those of the first tiles before these are copied, all others after it.
  static constexpr int kFirst = 2;
  __device__ __forceinline__ static void init_first(unsigned char* memory) {
    if (lane_id() == 0) {
      for (int n = 0; n < kFirst; ++n) init_full(memory, n);
      mbarrier_init_fence();
    }
    __syncwarp();
  }
  __device__ __forceinline__ static void init_others(unsigned char* memory) {
    if (lane_id() == 0) {
      for (int n = kFirst; n < C.stages; ++n) init_full(memory, n);
      for (int n = 0; n < C.stages; ++n) mbarrier_init(full(memory, n) + 8, kComputing / 32);
      mbarrier_init_fence();
    }
    __syncwarp();
  }

  __device__ static bool computes() { return static_cast<int>(threadIdx.x) < kComputing; }
  __device__ static bool copies() {
    return static_cast<int>(threadIdx.x) >= kComputing &&
           (!moves_registers(C) || static_cast<int>(threadIdx.x) < meeting_threads(C));
  }

  // Where registers are moved: by all threads, those who compute and those who do not.
  __device__ static void setmaxnreg_inc() { cuflash::setmaxnreg_inc<consumer_registers(C)>(); }
  __device__ static void setmaxnreg_dec() { cuflash::setmaxnreg_dec<producer_registers(C)>(); }

  // Old rows that somebody sees.
  __device__ int begin_row() const { return work.sequence.pad + work.seen.begin; }
  __device__ int end_row() const { return min(work.sequence.pad + work.seen.end, work.sequence.old_end); }

  // Every tile of a sequence is one box of the entry that has the sequence's number.
  __device__ static bool is_whole(const Sm90KvParams& p) { return p.first.page_size == 0; }
  // Where a tile has several boxes, each is one lane's, and the lanes have several tiles.
  __device__ static int lane_tile(const Sm90KvParams& p) { return lane_id() >> p.first.box_bits; }
  __device__ static int lane_box(const Sm90KvParams& p) { return lane_id() & ((1 << p.first.box_bits) - 1); }
  __device__ static int box_rows(const Sm90KvParams& p) { return C.tile_k >> p.first.box_bits; }

  // Of `rows` rows.
  __device__ static unsigned part_bytes(int part, int rows) {
    constexpr unsigned kKeyBytes = static_cast<unsigned>(KTile::kBytes) / C.tile_k,
                       kValueBytes = static_cast<unsigned>(VTile::kBytes) / C.tile_k;
    return static_cast<unsigned>(rows) * (part == 0 ? kKeyBytes : kValueBytes);
  }
  __device__ __forceinline__ static void copy_box(const Sm90KvParams& p, unsigned char* memory, int head_k, int stage,
                                                  int part, int box, const EntryRow& from, EvictionPolicy policy) {
    static_assert(KTile::kPanelBytes == VTile::kPanelBytes);
    const TensorMap& map = part == 0 ? p.k : p.v;
    const int head = head_k * (part == 0 ? p.first.k_head : p.first.v_head),
              entry = static_cast<int>(from.entry) * (part == 0 ? p.first.k_entry : p.first.v_entry),
              panels = part == 0 ? KTile::kPanels : VTile::kPanels;
    const unsigned to = part == 0 ? k_tile(memory, stage).address : v_tile(memory, stage).address;
#pragma unroll
    for (int panel = 0; panel < panels; ++panel)
      tma_load(to + panel * KTile::kPanelBytes + box * box_rows(p) * kPanelRowBytes, map, full(memory, stage, part),
               panel * kPanelColumns, from.row, head, entry, policy);
  }
  // All parts at once: boxes of several lanes are asked for one after the other, and to go around twice takes longer.
  __device__ __forceinline__ static void announce(unsigned char* memory, int stage, int rows) {
    if (lane_id() == 0) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        mbarrier_arrive_expect_tx(full(memory, stage, part), part_bytes(part, rows));
    }
    __syncwarp();
  }
  __device__ __forceinline__ static void copy_parts(const Sm90KvParams& p, unsigned char* memory, int head_k, int stage,
                                                    int box, const EntryRow& from, EvictionPolicy policy) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) copy_box(p, memory, head_k, stage, part, box, from, policy);
  }
  // A tile that is one box, by one lane. Nothing of it differs between lanes: of what does the assembler makes loops.
  __device__ __forceinline__ static void copy_whole(const Sm90KvParams& p, unsigned char* memory, const KvItem& at,
                                                    int stage, int part, int row, EvictionPolicy policy) {
    if (lane_id() != 0) return;
    mbarrier_arrive_expect_tx(full(memory, stage, part), part_bytes(part, C.tile_k));
    copy_box(p, memory, at.head_k, stage, part, 0, {at.b, row}, policy);
  }
  // By the copying warp, before lengths are known, where they do not decide about the first tiles. Pages are looked up for
  // more of them.
  __device__ __forceinline__ static Ahead copy_first(const Sm90KvParams& p, unsigned char* memory, const KvItem& at) {
    if (at.split >= p.first.splits) return {};
    const EvictionPolicy policy = p.first.row_tiles == 1 ? evict_first() : evict_normal();
    if (is_whole(p)) {
#pragma unroll 1
      for (int n = 0; n < p.first.tiles; ++n) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) copy_whole(p, memory, at, n, part, (at.split + n) * C.tile_k, policy);
      }
      return {p.first.tiles, {}};
    }
    const int row = (at.split + lane_tile(p) * p.first.splits) * C.tile_k + lane_box(p) * box_rows(p);
    const EntryRow from = entry_row(p.first, at.b, row);
#pragma unroll 1
    for (int n = 0; n < p.first.tiles; ++n) {
      announce(memory, n, C.tile_k);
      if (lane_tile(p) == n) copy_parts(p, memory, at.head_k, n, lane_box(p), from, policy);
    }
    __syncwarp();
    return {p.first.tiles, from};
  }
  // Of these, those that turn out to be nobody's: before their place has another use, and before the CTA ends.
  __device__ __forceinline__ void wait_for_unused() const {
    for (int n = work.attends() ? work.count() : 0; n < ahead.tiles; ++n) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) mbarrier_wait(full(n, part), 0);
    }
  }

  // How long L2 keeps tiles of keys. With several tiles of rows other CTAs read them, too.
  __device__ __forceinline__ EvictionPolicy policy() const {
    if (p.first.row_tiles != 1) return evict_normal();
    return work.count() >= p.many_tiles && item_number(work.p, work.at) < p.early_ctas ? evict_first_sixteenth()
                                                                                       : evict_first();
  }
  // By the copying warp. When all is asked for, CTAs of the next kernel may come and wait for the end of this one.
  __device__ __forceinline__ void copy_all() {
    if (C.fast_decode && is_whole(p)) copy_tiles();
    else copy_looked_up();
    griddepcontrol_launch_dependents();
  }
  __device__ __forceinline__ void wait_for_room() const { mbarrier_wait(empty(ring.stage), ring.phase ^ 1); }
  // Until few parts are on their way, before the n-th of all is asked for. Where all stages may be, room is enough.
  __device__ __forceinline__ void wait_until_few(int n) {
    if (n < p.on_their_way || p.on_their_way == kParts * C.stages) return;
    mbarrier_wait(full(arrived.stage / kParts, arrived.stage % kParts), arrived.phase);
    arrived.advance();
  }
  __device__ __forceinline__ void copy_tiles() {
    const EvictionPolicy policy = this->policy();
#pragma unroll 1
    for (int n = 0; n < work.count(); ++n, ring.advance()) {
      if (n < ahead.tiles) continue;
      wait_for_room();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        wait_until_few(n * kParts + part);
        copy_whole(p, work.memory, work.at, ring.stage, part, work.first_key(n), policy);
      }
    }
  }
  // So many tiles are looked up at once as the lanes have boxes of.
  __device__ __forceinline__ void copy_looked_up() {
    const EvictionPolicy policy = this->policy();
    const int tiles = 32 >> p.first.box_bits;
    const bool in_turns = work.tiles.first == work.at.split && work.tiles.step == work.p.eager_splits;
    const bool known = ahead.tiles != 0 && !is_whole(p) && in_turns;
#pragma unroll 1
    for (int first = 0; first < work.count(); first += tiles) {
      const bool has_tile = first + lane_tile(p) < work.count();
      const int row =
          has_tile ? work.sequence.pad + work.first_key(first + lane_tile(p)) + lane_box(p) * box_rows(p) : 0;
      const bool exists = has_tile && row + box_rows(p) > begin_row() && row < end_row();
      EntryRow from = ahead.from;
      if (exists && !(known && first == 0)) from = entry_row(p.first, work.at.b, row);
#pragma unroll 1
      for (int n = 0; n < tiles && first + n < work.count(); ++n, ring.advance()) {
        if (first + n < ahead.tiles) continue;
        const bool mine = exists && lane_tile(p) == n;
        const int rows = static_cast<int>(__popc(__ballot_sync(0xffffffffu, mine))) * box_rows(p);
        wait_for_room();
#pragma unroll
        for (int part = 0; part < kParts; ++part) wait_until_few((first + n) * kParts + part);
        announce(work.memory, ring.stage, rows);
        if (mine) copy_parts(p, work.memory, work.at.head_k, ring.stage, lane_box(p), from, policy);
      }
    }
  }

  __device__ bool has_all_rows(int n) const {
    const int row = work.sequence.pad + work.first_key(n);
    return row >= begin_row() && row + C.tile_k <= end_row();
  }
  // By those who compute: rows of the tile that are not in the cache. Who has read what was in this stage before has said so
  // to the copying warp, which has told all others; racecheck does not follow that, but it knows the first barrier.
  __device__ __forceinline__ void patch_rows(int n) const {
    wait_for_values();
    named_barrier_sync(kBarrier, kComputing);
    const int k_first = work.first_key(n);
    const auto is_seen = [&](int row) { return k_first + row >= work.seen.begin && k_first + row < work.seen.end; };
    const auto is_new = [&](int row) {
      return is_seen(row) && work.sequence.pad + k_first + row >= work.sequence.old_end;
    };
    constexpr int kPieces = C.dim_v / 8;
    constexpr RealOf<E> kZeros[8] = {};
#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x); n < C.tile_k * kPieces; n += kComputing)
      if (!is_seen(n / kPieces))
        put_eight<E>(v_tile(ring.stage), n / kPieces, value_column() + n % kPieces * 8, kZeros);
    if constexpr (!C.fast_decode)
      load_new<false, kComputing, E, C.tile_k, C.dim_qk>(k_tile(ring.stage), is_new, work.p, work.sequence, work.at,
                                                         k_first);
    if constexpr (!C.fast_decode && !C.v_in_k)
      load_new<true, kComputing, E, C.tile_k, C.dim_v>(v_tile(ring.stage), is_new, work.p, work.sequence, work.at,
                                                       k_first);
    async_proxy_fence();
    named_barrier_sync(kBarrier, kComputing);
  }
  __device__ __forceinline__ void wait_for_values() const { mbarrier_wait(full(ring.stage, kParts - 1), ring.phase); }
  __device__ __forceinline__ void wait(int n) const {
    mbarrier_wait(full(ring.stage), ring.phase);
    if constexpr (by_warpgroups(C)) wait_for_values();
    if (__builtin_expect(!has_all_rows(n), 0)) patch_rows(n);
  }
  // By those who compute: until all of them have read all keys and values.
  __device__ static void wait_for_readers() { named_barrier_sync(kBarrier, kComputing); }
  __device__ __forceinline__ void release(int stage) const {
    __syncwarp();
    if (lane_id() == 0) mbarrier_arrive(empty(stage));
  }
  __device__ __forceinline__ void leave() {
    release(ring.stage);
    ring.advance();
  }
};

}  // namespace cuflash
