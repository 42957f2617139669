#include "cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/decode.h"
#include "cpu/panel.h"
#include "cpu/threads.h"
#include "cpu/tile_counter.h"
#include "cpu/workspace.h"

namespace cuflash::cpu {
namespace {

// What one worker needs, O(tile * head size). A query tile is a few panels, so that packing K and V pays.
template <class T>
struct ForwardScratch {
  Panel<T> panel;
  int64_t dim_v;  // rounded up to whole left panels
  T* k;           // left, by dim
  RowOperand<T> v;
  T* q;          // right, by dim: [panel][dim_qk][lane]; free for other use once the tile is done
  T* o;          // [panel][dim_v][lane], not yet divided by l
  T* m;          // [panel][lane]: the largest score so far
  T* l;          // [panel][lane]: the sum of exp(s - m) so far
  T* inverse_l;  // [lane]

  ForwardScratch(Arena& arena, const Problem& p, const Kernels<T>& kernels, TileShape shape)
      : panel(arena, p, kernels, shape.k), dim_v(round_up(p.dim_v, kernels.rows)) {
    k = arena.take<T>(round_up(shape.k, kernels.rows) * p.dim_qk);
    v = RowOperand<T>(arena, shape.k, p.dim_v, kernels.rows);
    q = arena.take<T>(std::max(shape.q * p.dim_qk, kernels.lanes * p.dim_v));
    o = arena.take<T>(shape.q * dim_v);
    m = arena.take<T>(shape.q);
    l = arena.take<T>(shape.q);
    inverse_l = arena.take<T>(kernels.lanes);
  }
};

template <class T>
void start(const ForwardProblem& p, const Head& head, Range queries, ForwardScratch<T>& w) {
  const Kernels<T>& kernels = w.panel.kernels;
  const int64_t padded = round_up(queries.size(), kernels.lanes);
  kernels.pack(source_of(p.q, head.b, head.h, head.seq.q_begin, queries, p.dim_qk), Side::right,
               static_cast<T>(p.scale), w.q, nullptr, 0, nullptr, w.panel.staging);
  std::fill_n(w.o, padded * w.dim_v, T{0});
  // The sink is a score that takes part in the sum and has no value.
  const T sink = static_cast<T>(p.sink ? load_element(p.sink.data, p.sink.dtype, p.sink.at(0, head.h)) : -INFINITY);
  std::fill_n(w.m, padded, sink);
  std::fill_n(w.l, padded, sink == -INFINITY ? T{0} : T{1});
}

// The online softmax of one panel over one tile of keys.
template <class T>
void attend_panel(const ForwardProblem& p, const Head& head, Range tile, Range queries, Range keys,
                  ForwardScratch<T>& w) {
  const Kernels<T>& kernels = w.panel.kernels;
  const int64_t first = queries.begin - tile.begin;
  T* o = w.o + first * w.dim_v;
  w.panel.compute_scores(p, head, queries, keys, w.q + first * p.dim_qk, w.k);
  kernels.softmax(w.panel.keys.size(), w.panel.s, w.m + first, w.l + first, o, w.dim_v);
  if (w.panel.keep)
    for (int64_t n = 0; n < w.panel.keys.size() * kernels.lanes; ++n) w.panel.s[n] *= w.panel.keep[n];
  w.panel.add_keys(w.panel.s, w.v, o);
}

template <class T>
void attend(const ForwardProblem& p, const Head& head, Range tile, int64_t tile_k, ForwardScratch<T>& w,
            TileCounter& counter) {
  const Kernels<T>& kernels = w.panel.kernels;
  start(p, head, tile, w);
  for_tiles(keys_of_queries(p, head.seq, tile), tile_k, head.seq.len_k, [&](Range keys) {
    kernels.pack(source_of(p.k, head.b, head.hk, head.seq.k_begin, keys, p.dim_qk), Side::left, 1, w.k, nullptr, 0,
                 nullptr, w.panel.staging);
    w.v.load(kernels, source_of(p.v, head.b, head.hk, head.seq.k_begin, keys, p.dim_v), Side::left, 1, nullptr,
             w.panel.staging);
    for_tiles(tile, kernels.lanes, tile.end, [&](Range queries) {
      const TileKind kind = tile_kind(p, head.seq, queries, keys);
      if (kind == TileKind::skipped) return;
      counter.visit(kind);
      attend_panel(p, head, tile, queries, keys, w);
    });
  });
}

// The first `computed` rows of `written` have results, the rest lies beyond the sequence's length.
template <class T>
void store(const ForwardProblem& p, const Head& head, Range written, int64_t computed, ForwardScratch<T>& w) {
  const Kernels<T>& kernels = w.panel.kernels;
  T* rows = w.panel.staging;  // [lane][dim_v]
  for (int64_t q = 0; q < written.size(); ++q) {
    const int64_t lane = q % kernels.lanes, row = head.seq.q_begin + written.begin + q;
    if (lane == 0 && q < computed) {
      for (int64_t n = 0; n < kernels.lanes; ++n) w.inverse_l[n] = 1 / w.l[q + n];
      kernels.unpack(p.dim_v, w.o + q * w.dim_v, w.inverse_l, w.q, rows);
    }
    const bool seen = q < computed && w.l[q] != 0;
    if (!seen) std::fill_n(rows + lane * p.dim_v, p.dim_v, T{0});
    store_row(p.o.data, p.o.dtype, p.o.at(head.b, head.h, row), p.dim_v, rows + lane * p.dim_v);
    if (!p.lse) continue;
    const T lse = seen ? w.m[q] + std::log(w.l[q]) : -std::numeric_limits<T>::infinity();
    store_row(p.lse.data, p.lse.dtype, p.lse.at(head.b, head.h, row), 1, &lse);
  }
}

template <class T>
struct ForwardLayout {
  const Kernels<T>& kernels = cpu::kernels<T>();
  TileShape shape;
  int64_t tasks, workers;
  size_t scratch_bytes, index_bytes;

  ForwardLayout(const ForwardProblem& p, const Execution& e) : shape(forward_tile(p, kernels.lanes)) {
    tasks = TileIndex::count(p, TileIndex::Side::query, p.heads_q, shape.q);
    workers = worker_count(p, e, tasks);
    Arena index(nullptr), scratch(nullptr);
    index.take<int64_t>(p.batch + 1);
    ForwardScratch<T>(scratch, p, kernels, shape);
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
    ForwardScratch<T> scratch(arena, p, layout.kernels, layout.shape);
    const auto [b, h, rows] = tiles.place(task);
    const Head head = head_of(p, b, h);
    const Range queries{rows.begin, std::min(rows.end, head.seq.len_q)};
    if (!queries.empty()) attend(p, head, queries, layout.shape.k, scratch, counter);
    store(p, head, rows, queries.size(), scratch);
  });
  counter.report(p, {layout.kernels.lanes, layout.shape.k}, e.tile_stats);
}

}  // namespace

void forward(const ForwardProblem& p, const Execution& e) {
  if (takes_decode(p)) return decode(p, e);
  p.dtype == DType::f64 ? run<double>(p, e) : run<float>(p, e);
}

size_t forward_workspace_size(const ForwardProblem& p, const Execution& e) {
  if (takes_decode(p)) return decode_workspace_size(p, e);
  return p.dtype == DType::f64 ? ForwardLayout<double>(p, e).bytes() : ForwardLayout<float>(p, e).bytes();
}

}  // namespace cuflash::cpu
