// Attention over a KV cache, one launch: new rows are appended, queries turned, and one CTA attends a tile of rows, the
// queries of all heads that share keys, to a part of the keys (cache/geometry.h says which). Whoever of the CTAs of a tile
// of rows comes last adds up what they have written to the workspace (cache/ends.h).
//
//   shared memory   Q | K, V of each stage | where the keys of each stage lie; sums of the key warps at the end
//   per warp        16 rows, tile_k / key_warps keys, dim_v / column_warps columns of O
//
//   before          places of the first tiles | barrier | start copying stages - 1 of them | Q | append
//   step n          wait tile n | barrier | start copying tile n + stages - 1 | look up the places of tile n + stages |
//                   scores, softmax, accumulate | note the places
//   after           barrier | sums of warps to shared memory | barrier | add them up: O, or what a split leaves behind |
//                   barrier | ticket | the last one adds up the splits: O
//
// Keys that are looked up, rows that are new and rows that nobody sees are all told by their place. What lies in a row that
// nobody sees is never read: it is zero in shared memory, since a weight of zero would not keep a NaN out.
#pragma once

#include "attn/sequence.h"
#include "cache/append.h"
#include "cache/ends.h"
#include "cache/loads.h"
#include "cache/products.h"
#include "cache/rows.h"
#include "cache/ticket.h"

namespace cuflash {

template <CacheConfig C>
struct CacheAttention {
  static constexpr Element E = C.element;
  using Real = RealOf<E>;
  static constexpr int kThreads = num_threads(C);
  static constexpr int kKeys = C.tile_k / C.key_warps;       // of a warp
  static constexpr int kColumns = C.dim_v / C.column_warps;  // of O, of a warp
  static constexpr int kScoreTiles = kKeys / 8, kOutputTiles = kColumns / 8;
  static_assert(C.tile_q == 16 * C.row_warps && kKeys % 16 == 0 && kKeys * C.key_warps == C.tile_k);
  static_assert(kColumns % 16 == 0 && kColumns * C.column_warps == C.dim_v && C.stages >= 2);
  static_assert(!C.v_in_k || C.dim_v <= C.dim_qk);
  // Where the sums take most registers, what is seldom needed in the loop, or after it, is found out anew.
  static constexpr bool kForgets = kColumns > 128 || E == Element::f64;

  using QTile = Tile<E, C.tile_q, C.dim_qk>;
  using KTile = Tile<E, C.tile_k, C.dim_qk>;
  using VTile = Tile<E, C.tile_k, C.dim_v>;
  using Rows = LaneRows<E, C.options>;
  using Scores = Accumulator<Real>[1][kScoreTiles];
  using Output = Accumulator<Real>[1][kOutputTiles];

  const CacheParams& p;
  const AttentionParams& a;
  unsigned char* memory;
  CacheItem at;
  CachedSequence sequence;
  RowRange rows;    // that exist
  KeyRange seen;    // keys that one of them sees
  KeyRange common;  // keys that all of them see
  int splits;       // that have keys
  TileRange tiles;  // of this one

  __device__ __forceinline__ CacheAttention(const CacheParams& p, unsigned char* memory)
      : p(p),
        a(p.attention),
        memory(memory),
        at(cache_item(p, cta_number())),
        sequence(cached_sequence(p, at.b)),
        rows(rows_of_tile(a, sequence, at.row_tile, C.tile_q)) {
    const SeenKeys keys = keys_of_rows(a, sequence, rows);
    seen = keys.any, common = keys.all;
    const TileRange all = key_tiles(seen, C.tile_k);
    splits = used_splits(p, all);
    tiles = tiles_of_split(all, splits, at.split);
  }

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int column_warp() { return warp() % C.column_warps; }
  __device__ static int key_warp() { return warp() / C.column_warps % C.key_warps; }
  __device__ static int warp_row() { return warp() / (C.column_warps * C.key_warps) * 16; }
  __device__ static int lane_row() { return warp_row() + lane_id() / 4; }

  __device__ QTile q_tile() const { return {memory}; }
  __device__ KTile k_tile(int stage) const { return {memory + QTile::kBytes + stage * stage_bytes(C)}; }
  __device__ auto v_tile(int stage) const {
    if constexpr (C.v_in_k) return k_tile(stage);
    else return VTile{k_tile(stage).memory + KTile::kBytes};
  }
  __device__ KeyPlace* places(int stage) const {
    return reinterpret_cast<KeyPlace*>(memory + QTile::kBytes + C.stages * stage_bytes(C)) + stage * C.tile_k;
  }

  __device__ int count() const { return tiles.end - tiles.begin; }
  __device__ int first_key(int n) const { return (tiles.begin + n) * C.tile_k; }
  __device__ __forceinline__ KeyPlace place(int n, int row) const {
    return place_of_key(p, sequence, at.b, seen, first_key(n) + row);
  }

  // The n-th tile of this split.
  __device__ __forceinline__ void load(int n) const {
    const int stage = n % C.stages;
    const KeyPlace* const where = places(stage);
    const auto* k_head = static_cast<const StoredOf<E>*>(a.k.data) + at.head_k * a.k.head_stride;
    const auto* v_head = static_cast<const StoredOf<E>*>(a.v.data) + at.head_k * a.v.head_stride;
    load_cached<false, C.copy, kThreads>(k_tile(stage), where, k_head, a.dim_qk);
    if constexpr (!C.v_in_k) load_cached<true, C.copy, kThreads>(v_tile(stage), where, v_head, a.dim_v);
    if (sequence.pad + first_key(n) + C.tile_k <= sequence.old_end || sequence.new_count == 0) return;
    const CachedSequence s = kForgets ? cached_sequence(p, at.b) : sequence;
    load_new<false, kThreads>(k_tile(stage), where, p, s, at, first_key(n));
    if constexpr (!C.v_in_k) load_new<true, kThreads>(v_tile(stage), where, p, s, at, first_key(n));
  }

  __device__ __forceinline__ void begin() const {
    for (int n = static_cast<int>(threadIdx.x); n < C.stages * C.tile_k; n += kThreads)
      if (n / C.tile_k < count()) places(0)[n] = place(n / C.tile_k, n % C.tile_k);
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < C.stages - 1; ++n) {
      if (n < count()) load(n);
      copy_async_commit();  // an empty group keeps the count of pending ones right
    }
    load_queries<kThreads>(q_tile(), p, sequence, at, rows);
  }

  __device__ __forceinline__ void step(int n, const Rows& lane_rows, Softmax<Real, 1>& softmax, Output& o) const {
    copy_async_wait<C.stages - 2>();
    __syncthreads();
    if (n + C.stages - 1 < count()) load(n + C.stages - 1);
    copy_async_commit();
    // Looked up now and noted after the products: they wait for nothing in between.
    const int thread = static_cast<int>(threadIdx.x);
    static_assert(C.tile_k <= kThreads);
    const bool looks_up = thread < C.tile_k && n + C.stages < count();
    KeyPlace next{};
    if (looks_up) next = place(n + C.stages, thread);

    const int stage = n % C.stages, key = key_warp() * kKeys, k_first = first_key(n);
    Scores s;
    multiply_keys<C.dim_qk, E>(s, q_tile(), warp_row(), k_tile(stage), key);
    const bool full = k_first >= common.begin && k_first + C.tile_k <= common.end;
    lane_rows.change(s, k_first + key + lane_id() % 4 * 2, full);
    softmax.follow(s, o);
    softmax.weigh(s);
    add_values<E>(o, s, v_tile(stage), key, (C.v_in_k ? p.v_column : 0) + column_warp() * kColumns);
    if (looks_up) places(stage)[thread] = next;
  }

  __device__ __forceinline__ void sum(Softmax<Real, 1>& softmax, Output& o) const {
    if (count() == 0) return;
    const Rows lane_rows(p, sequence, at, rows, lane_row());
#pragma unroll 1
    for (int n = 0; n < count(); ++n) step(n, lane_rows, softmax, o);
    copy_async_wait<0>();
    __syncthreads();  // K and V have been read
  }

  // Sums of key warp w of a row of the tile.
  __device__ Real* warp_sums(int w, int row) const {
    return reinterpret_cast<Real*>(memory) + (w * C.tile_q + row) * sums_stride(C);
  }
  __device__ RowState<Real>* warp_states(int w) const {
    return reinterpret_cast<RowState<Real>*>(warp_sums(C.key_warps, 0)) + w * C.tile_q;
  }

  __device__ __forceinline__ void share_sums(Softmax<Real, 1>& softmax, const Output& o) const {
    softmax.gather();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_row() + r * 8;
      Real* to = warp_sums(key_warp(), row) + column_warp() * kColumns + lane_id() % 4 * 2;
#pragma unroll
      for (int d = 0; d < kOutputTiles; ++d) to[d * 8] = o[0][d].x[r * 2], to[d * 8 + 1] = o[0][d].x[r * 2 + 1];
      if (column_warp() == 0 && lane_id() % 4 == 0)
        warp_states(key_warp())[row] = {softmax.reference[r], softmax.sum[r]};
    }
    __syncthreads();
  }

  // Rows of the tile that are written.
  __device__ int written() const { return min(C.tile_q, rows_end(a, sequence) - rows.first); }

  // Calls use(row of the tile, column) for pieces of eight columns of these rows.
  template <class Use>
  __device__ __forceinline__ void for_pieces(Use&& use) const {
    constexpr int kPieces = C.dim_v / 8;
#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x); n < written() * kPieces; n += kThreads)
      use(n / kPieces, n % kPieces * 8);
  }

  // Key warps become one: the output, or what a split leaves behind.
  __device__ __forceinline__ void add_warps() const {
    const SplitPlace<C> place(p, at);
    for_pieces([&](int row, int column) {
      SummedEight<Real, 1> eight(
          C.key_warps, Rows::factor(a), [&](int w) { return warp_states(w)[row]; },
          [&](int w, Real(&x)[8]) {
            const auto columns = *reinterpret_cast<const EightReals<Real>*>(warp_sums(w, row) + column);
#pragma unroll
            for (int n = 0; n < 8; ++n) x[n] = columns.x[n];
          });
      if (splits == 1) return finish_eight<E>(p, sequence, at, rows.first + row, column, Rows::unit(a), eight);
      EightReals<Real> sums;
#pragma unroll
      for (int n = 0; n < 8; ++n) sums.x[n] = eight.x[n];
      *reinterpret_cast<EightReals<Real>*>(place.sums(at.split, row, column)) = sums;
      if (column == 0) place.state(at.split, row)[0] = eight.row.top, place.state(at.split, row)[1] = eight.row.sum;
    });
  }

  // Splits become one. Their states come to shared memory first, where there is room: every piece of a row asks for them.
  __device__ __forceinline__ void add_splits() const {
    constexpr int kAtOnce = 32 / sizeof(Real);
    const SplitPlace<C> place(p, at);
    auto* const states = reinterpret_cast<RowState<Real>*>(memory);
    const int rows_here = written();
    const auto state_of = [&](int split, int row) {
      const Real* state = place.state(split, row);
      return RowState<Real>{load_from_l2(state), load_from_l2(state + 1)};
    };
    const bool here = int64{splits} * rows_here * int{sizeof *states} <= shared_bytes(C);
    if (here) {
      for (int n = static_cast<int>(threadIdx.x); n < splits * rows_here; n += kThreads)
        states[n] = state_of(n / rows_here, n % rows_here);
      __syncthreads();
    }
    for_pieces([&](int row, int column) {
      SummedEight<Real, kAtOnce> eight(
          splits, Rows::factor(a),
          [&](int split) { return here ? states[split * rows_here + row] : state_of(split, row); },
          [&](int split, Real(&x)[8]) { load_eight_from_l2(place.sums(split, row, column), x); });
      finish_eight<E>(p, sequence, at, rows.first + row, column, Rows::unit(a), eight);
    });
  }

  __device__ __forceinline__ uint64* ticket() const { return p.tickets + tile_number(p, at); }
  __device__ __forceinline__ bool comes_last() const {
    __syncthreads();
    const bool last = threadIdx.x == 0 && arrive(ticket(), splits);
    return __syncthreads_or(last) != 0;
  }

  __device__ __forceinline__ void count_tiles() const {
    if (!a.tile_counts || at.split != 0 || threadIdx.x != 0 || rows.first >= rows.end) return;
    const TileRange all = key_tiles(seen, C.tile_k);
    // A last tile that is short but wholly visible counts as full.
    const int full_end =
        common.end >= sequence.len_k ? (sequence.len_k + C.tile_k - 1) / C.tile_k : common.end / C.tile_k;
    const int full_begin = (common.begin + C.tile_k - 1) / C.tile_k;
    const int visited = all.end - all.begin, full = max(0, min(full_end, all.end) - max(full_begin, all.begin));
    atomicAdd(a.tile_counts + 0, static_cast<uint64>(visited));
    atomicAdd(a.tile_counts + 1, static_cast<uint64>(visited - full));
    atomicAdd(a.tile_counts + 2, static_cast<uint64>((sequence.len_k + C.tile_k - 1) / C.tile_k - visited));
  }

  __device__ __forceinline__ void run() const {
    const bool attends = at.split < splits && rows.first < rows_end(a, sequence);
    if (attends && count() > 0) begin();
    // While the first keys are on their way.
    append_rows<E, kThreads>(p, sequence, at);
    if (!attends) return;
    if (splits > 1 && threadIdx.x == 0) prepare_ticket(ticket());
    count_tiles();
    Output o = {};
    Softmax<Real, 1> softmax(Rows::factor(a));
    sum(softmax, o);
    if constexpr (kForgets) CacheAttention(p, memory).end(softmax, o);
    else end(softmax, o);
  }
  __device__ __forceinline__ void end(Softmax<Real, 1>& softmax, const Output& o) const {
    share_sums(softmax, o);
    add_warps();
    if (splits > 1 && comes_last()) add_splits();
  }
};

template <CacheConfig C>
__device__ __forceinline__ void cache_attention(const CacheParams& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  if (cta_number() >= int64{p.attention.batch} * p.attention.heads_k * p.row_tiles * p.splits) return;
  CacheAttention<C>(p, memory).run();
}

}  // namespace cuflash
