// dBias: dS, reduced over the batch entries, heads and queries that share the bias. A CTA owns a tile of the bias,
// recomputes the scores of everything that shares it and accumulates in registers in a fixed order: bitwise
// reproducible, no atomics.
#pragma once

#include "portable/backward/loads.h"
#include "portable/backward/masked_queries.h"
#include "portable/backward/scores.h"

namespace cuflash {

template <BackwardConfig C>
struct BiasTile {
  using S = Shape<C>;
  using Real = typename S::Real;
  using Chunk = ScoreChunk<C>;

  const BackwardParams& p;
  const AttentionParams& a;
  const SharedTiles<C> tiles;
  const int bias_b, bias_h;
  const int first_row, first_key;  // first row and key of the tile

  __device__ bool one_row() const { return p.bias_len_q == 1; }

  // Calls use(chunk, dS) for every score chunk of every tile that shares this tile of the bias.
  template <class Use>
  __device__ __forceinline__ void for_scores(Use use) const {
    const int tiles_q = one_row() ? static_cast<int>(tiles_in(a.len_q, C.tile_q)) : first_row / C.tile_q + 1;
    for (int b = bias_b; b < (p.bias_batch == 1 ? a.batch : bias_b + 1); ++b)
      for (int h = bias_h; h < (p.bias_heads == 1 ? a.heads_q : bias_h + 1); ++h) {
        TaskCoord coord{};
        coord.b = b, coord.head_k = h / a.group, coord.k_first = first_key;
        coord.sequence = sequence_of(a, b);
        coord.group = 1;
        set_heads<C>(p, coord, h);
        const Range keys{first_key, min(int64{first_key} + C.tile_k, int64{coord.sequence.len_k})};
        coord.visited = visited_query_tiles<C>(a, coord.sequence, keys, false);
        for (int tile = one_row() ? 0 : first_row / C.tile_q; tile < tiles_q; ++tile) {
          const MaskVisibility shown = visibility(b, h, tile);
          count(coord, tile, shown);
          if (tile >= coord.visited.begin && tile < coord.visited.end && shown != MaskVisibility::none)
            visit(coord, h, tile, use);
        }
      }
  }

  // What the mask tensor shows of a query tile.
  __device__ __forceinline__ MaskVisibility visibility(int b, int h, int tile) const {
    if ((C.options & kMaskTensor) == 0 || !a.summary.blocks) return MaskVisibility::all;
    return mask_visibility(mask_of_head(a.summary, b, h), tile * C.tile_q, C.tile_q, first_key, C.tile_k);
  }

  template <class Use>
  __device__ __forceinline__ void visit(const TaskCoord& coord, int h, int tile, Use use) const {
    const int i = tile * C.tile_q, j = first_key + S::first_key();
    __syncthreads();
    load_k<C>(p, coord, tiles);
    const QueriesToLoad<C> queries(p, coord, 0, tile, 0);
    queries.load_q(p, tiles);
    queries.load_stats(tiles);
    if constexpr (!SharedTiles<C>::kSharedBuffers) load_values(coord, queries);
    cp_async_commit();
    wait_for_copies();
    const typename Chunk::Options options(a, coord.sequence, coord.b, h);
    const VisibleQueries<C> visible(a, coord.sequence, i, first_key);
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      const int first = S::column_warp() * S::kQueries + chunk * S::kChunk;
      Chunk scores;
      if (S::scores_queries())
        scores.template compute_p<TileMode::masked>(tiles.k(), tiles.q(0), tiles.stats(0), first, options, visible, i,
                                                    j);
      if constexpr (SharedTiles<C>::kSharedBuffers) {
        __syncthreads();
        load_values(coord, queries);
        cp_async_commit();
        wait_for_copies();
      }
      if (!S::scores_queries()) break;
      scores.template compute_ds<TileMode::masked, Gradient::of_bias>(tiles.v(), tiles.dout(0), tiles.stats(0), first,
                                                                      options, i, j);
      use(chunk, scores.ds);
    }
  }
  __device__ __forceinline__ void load_values(const TaskCoord& coord, const QueriesToLoad<C>& queries) const {
    load_v<C>(p, coord, tiles);
    queries.load_dout(p, tiles);
  }

  __device__ __forceinline__ void count(const TaskCoord& coord, int tile, MaskVisibility shown) const {
    if (!p.counts_in_bias || !a.tile_counts || threadIdx.x != 0) return;
    if (tile * C.tile_q >= coord.sequence.len_q || first_key >= coord.sequence.len_k) return;
    const bool visited = tile >= coord.visited.begin && tile < coord.visited.end && shown != MaskVisibility::none;
    const bool full = tile >= coord.visited.full_begin && tile < coord.visited.full_end && shown == MaskVisibility::all;
    atomicAdd(a.tile_counts + (visited ? 0 : 2), 1ull);
    if (visited && !full) atomicAdd(a.tile_counts + 1, 1ull);
  }

  __device__ __forceinline__ void store(int row, int key, Real x) const {
    if (row < p.bias_len_q && key < a.len_k)
      store_element<C.element>(p.dbias.data, p.dbias.element, offset_of(p.dbias, bias_b, bias_h, row) + key, x);
  }

  // The bias has a row per query: every row of the tile has its own gradient.
  __device__ __forceinline__ void sum_rows() const {
    typename S::Sum sum[S::kChunks][S::kKeyTiles][S::kQueryTiles] = {};
    for_scores([&](int chunk, const auto& ds) {
      for_elements([&](int m, int n, int x) { sum[chunk][m][n].x[x] += ds[m][n].x[x]; });
    });
    if (!S::scores_queries()) return;
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk)
      for_elements([&](int m, int n, int x) {
        const int query = S::column_warp() * S::kQueries + chunk * S::kChunk + 8 * n + accumulator_column() + x % 2;
        const int key = S::first_key() + 16 * m + x / 2 * 8 + accumulator_row();
        store(first_row + query, first_key + key, sum[chunk][m][n].x[x]);
      });
  }

  // All queries share one bias row: lanes and warps are reduced in a fixed order.
  __device__ __forceinline__ void sum_queries() const {
    Real sum[S::kKeyTiles][2] = {};
    for_scores(
        [&](int, const auto& ds) { for_elements([&](int m, int n, int x) { sum[m][x / 2] += ds[m][n].x[x]; }); });
    auto* partial = reinterpret_cast<Real*>(tiles.ds().memory);  // [scoring warp][key]
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Real x = sum[m][half];
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        x += __shfl_xor_sync(0xffffffffu, x, 2);
        const int key = S::first_key() + 16 * m + 8 * half + accumulator_row();
        if (S::scores_queries() && lane_id() % 4 == 0) partial[S::column_warp() * C.tile_k + key] = x;
      }
    __syncthreads();
    for (int key = static_cast<int>(threadIdx.x); key < C.tile_k; key += S::kThreads) {
      Real x = 0;
      for (int warp = 0; warp < S::kScoreWarps; ++warp) x += partial[warp * C.tile_k + key];
      store(0, first_key + key, x);
    }
  }

  template <class Body>
  static __device__ __forceinline__ void for_elements(Body body) {
#pragma unroll
    for (int m = 0; m < S::kKeyTiles; ++m)
#pragma unroll
      for (int n = 0; n < S::kQueryTiles; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) body(m, n, x);
  }
};

template <BackwardConfig C>
__device__ __forceinline__ void backward_bias(const BackwardParams& p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const AttentionParams& a = p.attention;
  const int64 tiles_k = tiles_in(a.len_k, C.tile_k), tiles_q = tiles_in(p.bias_len_q, C.tile_q), n = cta_number();
  if (n >= tiles_k * tiles_q * p.bias_heads * p.bias_batch) return;
  const int64 head = n / tiles_k / tiles_q;
  const BiasTile<C> tile{p,
                         a,
                         {memory},
                         static_cast<int>(head / p.bias_heads),
                         static_cast<int>(head % p.bias_heads),
                         static_cast<int>(n / tiles_k % tiles_q) * C.tile_q,
                         static_cast<int>(n % tiles_k) * C.tile_k};
  if (tile.one_row()) tile.sum_queries();
  else tile.sum_rows();
}

}  // namespace cuflash
