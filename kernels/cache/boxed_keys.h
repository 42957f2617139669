// Keys and values of a CTA come to shared memory as boxes of tensors, copied by a warp of their own (Hopper).
//
//   copying warp     wait until a stage is empty | announce its bytes | one lane for each box: K, V
//   all others       wait until it is full | new rows, and zeros for values that nobody sees, where it has such rows |
//                    use it | arrive on `empty`
//
// Where lengths do not decide which tile is the first, it is on its way before they, and with them the work, are known.
//
// A box may hold rows that nobody sees, and of a first tile pages that no key is in. What they hold of keys does not matter,
// since their scores are replaced; of values it would, since a weight of zero would not keep a NaN out.
#pragma once

#include "cache/loads.h"
#include "cache/work.h"
#include "hopper/ring.h"
#include "ptx/barrier.h"
#include "ptx/tensor_copy.h"
#include "ptx/warpgroup.h"
#include "tile/swizzled.h"

namespace cuflash {

template <CacheConfig C>
struct BoxedKeys {
  static constexpr Element E = C.element;
  static constexpr int kComputing = computing_threads(C);
  // Numbered barriers: of those who compute; of all, where the copying warp arrives and does not wait: its barriers can be
  // waited for, its ticket is prepared.
  static constexpr int kBarrier = 1, kStarted = 2, kEnding = 3;
  using KTile = SwizzledTile<C.tile_k, C.dim_qk>;
  using VTile = SwizzledTile<C.tile_k, C.dim_v>;

  const CacheWork<C>& work;
  const HopperCacheParams& p;
  bool ahead;  // of the copying warp: the first tile is on its way
  Ring<C.stages> ring{};

  __device__ BoxedKeys(const CacheWork<C>& work, const HopperCacheParams& p, bool ahead)
      : work(work), p(p), ahead(ahead) {}

  __device__ auto q_tile() const {
    if constexpr (by_warpgroups(C)) return SwizzledTile<C.tile_q, C.dim_qk>{shared_address(work.queries_memory())};
    else return work.q_tile();
  }
  __device__ static KTile k_tile(unsigned char* memory, int stage) {
    return {shared_address(CacheWork<C>::stage_memory(memory, stage))};
  }
  __device__ static auto v_tile(unsigned char* memory, int stage) {
    if constexpr (C.v_in_k) return k_tile(memory, stage);
    else return VTile{k_tile(memory, stage).address + KTile::kBytes};
  }
  __device__ KTile k_tile(int stage) const { return k_tile(work.memory, stage); }
  __device__ auto v_tile(int stage) const { return v_tile(work.memory, stage); }
  __device__ int value_column() const { return C.v_in_k ? work.p.v_column : 0; }
  __device__ static unsigned full(unsigned char* memory, int stage) {
    return shared_address(CacheWork<C>::stage_notes(memory, stage));
  }
  __device__ unsigned full(int stage) const { return full(work.memory, stage); }
  __device__ unsigned empty(int stage) const { return full(stage) + 8; }

  // By the copying warp, before all else.
  __device__ __forceinline__ static void init(unsigned char* memory) {
    if (lane_id() == 0) {
      for (int n = 0; n < C.stages; ++n)
        barrier_init(full(memory, n), 1), barrier_init(full(memory, n) + 8, kComputing / 32);
      barrier_init_fence();
    }
    __syncwarp();
  }

  __device__ static bool computes() { return static_cast<int>(threadIdx.x) < kComputing; }
  __device__ static bool copies() {
    return static_cast<int>(threadIdx.x) >= kComputing &&
           (!moves_registers(C) || static_cast<int>(threadIdx.x) < meeting_threads(C));
  }

  // Where registers are moved: by all threads, those who compute and those who do not.
  __device__ static void take_registers() { cuflash::take_registers<computing_registers(C)>(); }
  __device__ static void leave_registers() { cuflash::leave_registers<copying_registers(C)>(); }

  // Old rows that somebody sees.
  __device__ int begin_row() const { return work.sequence.pad + work.seen.begin; }
  __device__ int end_row() const { return min(work.sequence.pad + work.seen.end, work.sequence.old_end); }

  __device__ __forceinline__ static void copy_box(const HopperCacheParams& p, unsigned char* memory, int head_k,
                                                  int stage, int box, const EntryRow& from, CachePolicy policy) {
    const AttentionParams& a = p.cache.attention;
    const auto copy = [&](const TensorMap& map, const RowsView& view, auto tile) {
#pragma unroll
      for (int panel = 0; panel < tile.kPanels; ++panel)
        copy_box_async(tile.address + panel * tile.kPanelBytes + box * p.box_rows * kPanelRowBytes, map,
                       full(memory, stage), panel * kPanelColumns, from.row, view.head_stride != 0 ? head_k : 0,
                       view.batch_stride != 0 ? static_cast<int>(from.entry) : 0, policy);
    };
    copy(p.k, a.k, k_tile(memory, stage));
    if constexpr (!C.v_in_k) copy(p.v, a.v, v_tile(memory, stage));
  }
  // By the copying warp, before lengths are known: the first tile. False: they decide which one that is.
  __device__ __forceinline__ static bool copy_first(const HopperCacheParams& p, unsigned char* memory,
                                                    const CacheItem& at) {
    if (at.split >= p.known_splits) return false;
    if (lane_id() == 0) barrier_arrive_expecting(full(memory, 0), static_cast<unsigned>(stage_bytes(C)));
    __syncwarp();
    const int box = lane_id(), row = at.split * C.tile_k + box * p.box_rows;
    if (box < 1 << p.box_bits) {
      EntryRow from{at.b, row};
      if (__builtin_expect(p.cache.cache.page_size != 0 || p.cache.cache.entry, 0))
        from = entry_row(p.cache.cache, at.b, min(row, p.cache.attention.len_k - 1));
      copy_box(p, memory, at.head_k, 0, box, from, p.cache.row_tiles == 1 ? read_once_policy() : usual_policy());
    }
    __syncwarp();
    return true;
  }
  // Where nobody turns out to need it: before its place has another use, and before the CTA ends.
  __device__ __forceinline__ void wait_for_first() const { barrier_wait(full(0), 0); }
  // By the copying warp. So many tiles are looked up at once as the lanes have boxes of.
  __device__ __forceinline__ void copy_all() {
    const int boxes = 1 << p.box_bits, tiles = 32 >> p.box_bits;
    const unsigned box_bytes = static_cast<unsigned>(stage_bytes(C) / C.tile_k * p.box_rows);
    const int lane_tile = lane_id() >> p.box_bits, box = lane_id() & (boxes - 1);
    // With one tile of rows no other CTA reads these keys.
    const bool once = work.p.row_tiles == 1, early = cta_number() < p.early_ctas;
    const int usual_end = !once ? work.count() : early && work.count() > 2 * p.early_tiles ? p.early_tiles : 0;
#pragma unroll 1
    for (int first = 0; first < work.count(); first += tiles) {
      const bool has_tile = first + lane_tile < work.count();
      const int row = has_tile ? work.sequence.pad + work.first_key(first + lane_tile) + box * p.box_rows : 0;
      const bool exists = has_tile && row + p.box_rows > begin_row() && row < end_row();
      EntryRow from{};
      if (exists) from = entry_row(work.p.cache, work.at.b, row);
#pragma unroll 1
      for (int n = 0; n < tiles && first + n < work.count(); ++n, ring.advance()) {
        if (ahead && first + n == 0) continue;
        const bool mine = exists && lane_tile == n;
        const CachePolicy policy = first + n < usual_end ? usual_policy() : read_once_policy();
        const unsigned announced = __popc(__ballot_sync(0xffffffffu, mine)) * box_bytes;
        barrier_wait(empty(ring.stage), ring.phase ^ 1);
        if (lane_id() == 0) barrier_arrive_expecting(full(ring.stage), announced);
        __syncwarp();
        if (mine) copy_box(p, work.memory, work.at.head_k, ring.stage, box, from, policy);
      }
    }
  }

  __device__ bool is_whole(int n) const {
    const int row = work.sequence.pad + work.first_key(n);
    return row >= begin_row() && row + C.tile_k <= end_row();
  }
  // By those who compute: rows of the tile that are not in the cache. Who has read what was in this stage before has said so
  // to the copying warp, which has told all others; racecheck does not follow that, but it knows the first barrier.
  __device__ __forceinline__ void mend(int n) const {
    numbered_barrier_wait(kBarrier, kComputing);
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
    if constexpr (!C.plain)
      load_new<false, kComputing, E, C.tile_k, C.dim_qk>(k_tile(ring.stage), is_new, work.p, work.sequence, work.at,
                                                         k_first);
    if constexpr (!C.plain && !C.v_in_k)
      load_new<true, kComputing, E, C.tile_k, C.dim_v>(v_tile(ring.stage), is_new, work.p, work.sequence, work.at,
                                                       k_first);
    async_proxy_fence();
    numbered_barrier_wait(kBarrier, kComputing);
  }
  __device__ __forceinline__ void wait(int n) const {
    barrier_wait(full(ring.stage), ring.phase);
    if (__builtin_expect(!is_whole(n), 0)) mend(n);
  }
  // By those who compute: until all of them have read all keys and values.
  __device__ static void wait_for_readers() { numbered_barrier_wait(kBarrier, kComputing); }
  __device__ __forceinline__ void release(int stage) const {
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(empty(stage));
  }
  __device__ __forceinline__ void leave() {
    release(ring.stage);
    ring.advance();
  }
};

}  // namespace cuflash
