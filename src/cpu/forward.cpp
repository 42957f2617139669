#include "cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/softmax.h"
#include "cpu/threads.h"
#include "cpu/tile.h"
#include "cpu/tile_counter.h"
#include "cpu/workspace.h"

namespace cuflash::cpu {
namespace {

// What one worker needs, O(tile * head size):
//   q^T, k^T [dim][tile]   v [tile][dim_v]   s [tile_k][tile_q]   o [tile_q][dim_v]   m, l [tile_q]
template <class T>
struct ForwardScratch {
  Operand<T> q, k, v;
  Tile<T> tile;
  OnlineSoftmax<T> softmax;
  T* o;  // [query][dim_v], not yet divided by l
  int64_t o_stride;

  ForwardScratch(Arena& arena, const Problem& p, TileShape shape)
      : q(arena, shape.q, p.dim_qk, Operand<T>::kColumns),
        k(arena, shape.k, p.dim_qk, Operand<T>::kColumns),
        v(arena, shape.k, p.dim_v, Operand<T>::kRows),
        tile(arena, p, shape),
        softmax(arena, shape.q),
        o_stride(round_up(p.dim_v, kTileUnit)) {
    o = arena.take<T>(shape.q * o_stride);
  }
};

template <class T>
void multiply(T* s, const T* keep, int64_t count) {
  for (int64_t n = 0; n < count; ++n) s[n] *= keep[n];
}

// o = sum over keys of drop(p) v, rescaled whenever the maximum grows.
template <class T>
void attend(const ForwardProblem& p, const Head& head, Range queries, ForwardScratch<T>& w, TileCounter& counter) {
  const int64_t tile_k = w.tile.shape.k;
  std::fill_n(w.o, round_up(queries.size(), kTileUnit) * w.o_stride, T{0});
  w.softmax.start(p.sink ? load_element(p.sink.data, p.sink.dtype, p.sink.at(0, head.h)) : -INFINITY);
  w.q.load(p.q, head.b, head.h, head.seq.q_begin, queries, p.dim_qk, static_cast<T>(p.scale), w.tile.staging);

  const Range seen = keys_of_queries(p, head.seq, queries);
  for (int64_t k0 = seen.begin / tile_k * tile_k; k0 < seen.end; k0 += tile_k) {
    const Range keys{k0, std::min(k0 + tile_k, head.seq.len_k)};
    counter.visit(tile_kind(p, head.seq, queries, keys));
    w.k.load(p.k, head.b, head.hk, head.seq.k_begin, keys, p.dim_qk, 1, w.tile.staging);
    w.v.load(p.v, head.b, head.hk, head.seq.k_begin, keys, p.dim_v, 1, w.tile.staging);
    w.tile.compute_scores(p, head, queries, keys, w.q, w.k);
    const T* rescale = w.softmax.update(w.tile.s, w.tile.shape.q, w.tile.padded_k, w.tile.padded_q);
    for (int64_t q = 0; q < queries.size(); ++q)
      for (int64_t d = 0; d < w.o_stride; ++d) w.o[q * w.o_stride + d] *= rescale[q];
    if (w.tile.keep) multiply(w.tile.s, w.tile.keep, w.tile.padded_k * w.tile.shape.q);
    accumulate_over_keys(w.tile, w.tile.s, w.v, p.dim_v, w.o, w.o_stride);
  }
}

// The first `computed` rows of `written` have results, the rest lies beyond the sequence's length.
template <class T>
void store(const ForwardProblem& p, const Head& head, Range written, int64_t computed, ForwardScratch<T>& w) {
  for (int64_t q = 0; q < written.size(); ++q) {
    const int64_t row = head.seq.q_begin + written.begin + q;
    T* o = w.o + q * w.o_stride;
    T lse = -std::numeric_limits<T>::infinity();
    if (q < computed) {
      const T l = w.softmax.sum(q);
      for (int64_t d = 0; d < p.dim_v; ++d) o[d] = l == 0 ? T{0} : o[d] / l;
      lse = w.softmax.lse(q);
    } else {
      std::fill_n(o, p.dim_v, T{0});
    }
    store_row(p.o.data, p.o.dtype, p.o.at(head.b, head.h, row), p.dim_v, o);
    if (p.lse) store_row(p.lse.data, p.lse.dtype, p.lse.at(head.b, head.h, row), 1, &lse);
  }
}

template <class T>
struct ForwardLayout {
  TileShape shape;
  int64_t tasks, workers;
  size_t scratch_bytes, index_bytes;

  ForwardLayout(const ForwardProblem& p, const Execution& e) : shape(tile_shape(p)) {
    tasks = TileIndex::count(p, TileIndex::Side::query, p.heads_q, shape.q);
    workers = worker_count(p, e, tasks);
    Arena index(nullptr), scratch(nullptr);
    index.take<int64_t>(p.batch + 1);
    ForwardScratch<T>(scratch, p, shape);
    index_bytes = index.used(), scratch_bytes = scratch.used();
  }
  size_t bytes() const { return index_bytes + static_cast<size_t>(workers) * scratch_bytes; }
};

template <class T>
void run(const ForwardProblem& p, const Execution& e) {
  const ForwardLayout<T> layout(p, e);
  const Workspace workspace(e, layout.bytes());
  auto* block = static_cast<std::byte*>(workspace.data());
  const TileIndex tiles(p, TileIndex::Side::query, p.heads_q, layout.shape.q, Arena(block).take<int64_t>(p.batch + 1));
  TileCounter counter;
  run_tasks(e, layout.workers, layout.tasks, [&](int64_t worker, int64_t task) {
    Arena arena(block + layout.index_bytes + static_cast<size_t>(worker) * layout.scratch_bytes);
    ForwardScratch<T> scratch(arena, p, layout.shape);
    const auto [b, h, rows] = tiles.place(task);
    const Head head = head_of(p, b, h);
    const Range queries{rows.begin, std::min(rows.end, head.seq.len_q)};
    if (!queries.empty()) attend(p, head, queries, scratch, counter);
    store(p, head, rows, queries.size(), scratch);
  });
  counter.report(p, layout.shape, e.tile_stats);
}

}  // namespace

void forward(const ForwardProblem& p, const Execution& e) { p.dtype == DType::f64 ? run<double>(p, e) : run<float>(p, e); }

size_t forward_workspace_size(const ForwardProblem& p, const Execution& e) {
  return p.dtype == DType::f64 ? ForwardLayout<double>(p, e).bytes() : ForwardLayout<float>(p, e).bytes();
}

}  // namespace cuflash::cpu
