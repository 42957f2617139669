#include "cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/decode/decode.h"
#include "cpu/plan/heads_as_rows.h"
#include "cpu/plan/tuned_tile.h"
#include "cpu/plan/workspace.h"
#include "cpu/threads/threads.h"
#include "cpu/tile/key_rows.h"
#include "cpu/tile/panel.h"
#include "cpu/tile/read_ahead.h"
#include "cpu/tile/tile_counter.h"

namespace cuflash::cpu {
namespace {

// The scratch of one worker, O(tile * head size). A query tile is several panels, which amortises the packing of K and
// V.
template <class T, class E>
struct ForwardScratch {
  Panel<T, E> panel;
  TileMask mask;
  int64_t dim_qk;  // rounded up to whole steps
  int64_t dim_v;   // rounded up to whole left panels
  int64_t o_rows;  // dim_v, plus two for RoundedSums if weights are rounded
  E* k;            // left operand, by dim
  RowOperand<E> v;
  E* q;             // right operand, by dim: [panel][dim_qk][lane]
  T* o;             // [panel][o_rows][lane]: accumulator, not yet divided by l
  T* m;             // [panel][lane]: running max of s
  T* l;             // [panel][lane]: running sum of exp(scale (s - m))
  bool read_ahead;  // memory that is needed soon is worth fetching
  bool* fresh;      // [panel]: no key has been processed yet; o, except its last two rows, is not initialised
  T *factor, *lse;  // [lane]: values of finished rows
  std::byte* gathered = nullptr;  // [key][dim]: a tile of K or V, gathered from pages

  ForwardScratch(Arena& arena, const Problem& p, const Kernels<T, E>& kernels, TileShape shape)
      : panel(arena, p, kernels, shape.k),
        mask(arena, p, kernels.lanes, shape),
        dim_v(round_up(p.dim_v, kernels.rows)) {
    dim_qk = round_up(p.dim_qk, kernels.step);
    read_ahead = kernels.fetches_ahead && !fits_second_level_cache(p);
    k = arena.take<E>(round_up(shape.k, kernels.rows) * dim_qk);
    v = RowOperand<E>(arena, shape.k, p.dim_v, kernels.rows);
    q = arena.take<E>(shape.q * dim_qk);
    o_rows = dim_v + (kernels.to_right ? 2 : 0);
    o = arena.take<T>(shape.q * o_rows);
    m = arena.take<T>(shape.q);
    l = arena.take<T>(shape.q);
    fresh = arena.take<bool>(shape.q / kernels.lanes);
    factor = arena.take<T>(kernels.lanes);
    lse = arena.take<T>(kernels.lanes);
    if (p.cache.page_size) gathered = arena.take<std::byte>(shape.k * std::max(p.dim_qk, p.dim_v) * size_of(p.dtype));
  }
};

template <class T, class E>
void begin_tile(const ForwardProblem& p, const Head& head, Range queries, ForwardScratch<T, E>& w) {
  const Kernels<T, E>& kernels = w.panel.kernels;
  const int64_t padded = round_up(queries.size(), kernels.lanes);
  kernels.pack(source_of(p.q, head.b, head.h, head.seq.q_begin, queries, p.dim_qk), Side::right, w.q, nullptr, 0,
               nullptr, w.panel.staging);
  for (int64_t q = 0; q < padded; q += kernels.lanes)
    std::fill_n(w.o + q * w.o_rows + w.dim_v * kernels.lanes, (w.o_rows - w.dim_v) * kernels.lanes, T{0});
  std::fill_n(w.m, padded, -std::numeric_limits<T>::infinity());
  std::fill_n(w.l, padded, T{0});
  std::fill_n(w.fresh, padded / kernels.lanes, true);
}

// One step of the online softmax: a panel against a key tile.
template <class T, class E>
void attend_panel(const ForwardProblem& p, const Head& head, Range tile, Range queries, Range keys, const Ahead& ahead,
                  ForwardScratch<T, E>& w) {
  const Kernels<T, E>& kernels = w.panel.kernels;
  const int64_t first = queries.begin - tile.begin;
  T* o = w.o + first * w.o_rows;
  w.panel.compute_scores(p, head, queries, keys, w.mask.panel(first), w.q + first * w.dim_qk, w.k, ahead);
  const RoundedSums<T> sums{o + w.dim_v * kernels.lanes, o + (w.dim_v + 1) * kernels.lanes};
  bool& fresh = w.fresh[first / kernels.lanes];
  w.panel.add_softmax(w.v, w.m + first, w.l + first, o, fresh ? 0 : w.o_rows, fresh ? Into::overwrite : Into::add,
                      sums);
  fresh = false;
}

// The rows of a key tile: in place or, if they span several pages, gathered. Keys that no query sees may have no page
// and are 0 in `gathered`.
Source key_source(const Problem& p, const ConstRows& from, const Head& head, Range keys, Range seen, int64_t dim,
                  std::byte* gathered) {
  const auto rows_of = [&](Range some) { return Range{head.seq.k_begin + some.begin, head.seq.k_begin + some.end}; };
  const Range here{std::max(keys.begin, seen.begin), std::min(keys.end, seen.end)};
  const bool all = here.size() == keys.size();
  if (!p.cache.page_size || (all && contiguous_rows(p, from, head.b, rows_of(keys)) == keys.size()))
    return {from.data,       from.dtype,  key_offset(p, from, head.b, head.hk, head.seq.k_begin + keys.begin),
            from.row_stride, keys.size(), dim};
  const auto row_bytes = static_cast<size_t>(dim * size_of(from.dtype));
  const auto at = [&](int64_t key) { return gathered + static_cast<size_t>(key - keys.begin) * row_bytes; };
  std::fill(at(keys.begin), at(here.begin), std::byte{0});
  gather_rows(p, from, head.b, {head.hk, head.hk + 1}, rows_of(here), rows_of(seen).end, dim, at(here.begin));
  std::fill(at(here.end), at(keys.end), std::byte{0});
  return {gathered, from.dtype, 0, dim, keys.size(), dim};
}

// The result of a row is o times factor.
template <class T>
struct RowResult {
  T factor, lse;
};

// m is in units of 1 / scale. The sink is a score that takes part in the sum and has no value.
template <class T>
RowResult<T> finalize_row(T m, T l, T scale, T sink) {
  if (sink == -std::numeric_limits<T>::infinity() && l != 0) return {1 / l, m * scale + std::log(l)};
  const T largest = l == 0 ? -std::numeric_limits<T>::infinity() : m * scale;
  const T top = std::max(largest, sink);
  if (l == 0 && top == largest) return {0, top};  // NaN in l propagates
  const auto weight = [&](T score) { return score == top ? T{1} : std::exp(score - top); };
  const T total = l * weight(largest) + weight(sink);
  return {weight(largest) / total, top + std::log(total)};
}

// l sums the weights before they were rounded to 16 bits. If all weights of a row were rounded up, its output would be too
// large; dividing by the sum of the rounded weights makes it a weighted mean again.
template <class T>
void undo_rounding(T* factor, const T* sums, int64_t lanes) {
  for (int64_t n = 0; n < lanes; ++n) {
    const T before = sums[n], after = sums[lanes + n];
    if (after != 0) factor[n] *= before / after;
  }
}

// Writes zeros as O and -inf as LSE: rows that saw no key, or beyond the length of the sequence.
template <class T, class E>
void write_nothing(const ForwardProblem& p, const Head& head, Range rows, ForwardScratch<T, E>& w) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  std::fill_n(w.panel.staging, p.dim_v, T{0});
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    w.panel.kernels.store(p.o.data, p.o.dtype, p.o.at(head.b, head.h, row), p.dim_v, w.panel.staging);
    if (p.lse) store_row(p.lse.data, p.lse.dtype, p.lse.at(head.b, head.h, row), 1, &kNothing);
  }
}

template <class T>
T sink_of(const ForwardProblem& p, const Head& head) {
  return static_cast<T>(p.sink ? load_element(p.sink.data, p.sink.dtype, p.sink.at(0, head.h)) : -INFINITY);
}

// Writes O and LSE of a panel after all of its keys have been processed.
template <class T, class E>
void finish_panel(const ForwardProblem& p, const Head& head, Range tile, Range queries, T sink,
                  ForwardScratch<T, E>& w) {
  const Kernels<T, E>& kernels = w.panel.kernels;
  const int64_t first = queries.begin - tile.begin, first_row = head.seq.q_begin + queries.begin;
  T* o = w.o + first * w.o_rows;
  if (w.fresh[first / kernels.lanes]) std::fill_n(o, w.o_rows * kernels.lanes, T{0});
  for (int64_t n = 0; n < kernels.lanes; ++n) {
    const RowResult<T> result = finalize_row(w.m[first + n], w.l[first + n], w.panel.scale, sink);
    w.factor[n] = result.factor, w.lse[n] = result.lse;
  }
  if (kernels.to_right) undo_rounding(w.factor, o + w.dim_v * kernels.lanes, kernels.lanes);
  const Destination to{p.o.data, p.o.dtype, p.o.at(head.b, head.h, first_row), p.o.row_stride};
  kernels.unpack_rows(p.dim_v, queries.size(), o, w.factor, to, w.panel.staging);
  for (int64_t n = 0; n < queries.size(); ++n) {
    const int64_t row = first_row + n;
    if (w.lse[n] == -std::numeric_limits<T>::infinity()) write_nothing(p, head, {row, row + 1}, w);
    else if (p.lse) store_row(p.lse.data, p.lse.dtype, p.lse.at(head.b, head.h, row), 1, w.lse + n);
  }
}

// Queries of a head: what a task computes.
struct QueryTile {
  Head head;
  Range queries;
};

// next: the tile that the worker will probably compute next, or null.
template <class T, class E>
void attend(const ForwardProblem& p, const QueryTile& tile, const QueryTile* next, int64_t tile_k,
            ForwardScratch<T, E>& w, TileCounter& counter) {
  const Kernels<T, E>& kernels = w.panel.kernels;
  const auto& [head, rows] = tile;
  const T sink = sink_of<T>(p, head);
  begin_tile(p, head, rows, w);
  const Range seen = keys_of_queries(p, head.seq, rows);
  const auto for_panels = [&](auto body) { for_tiles(rows, kernels.lanes, rows.end, body); };
  bool finished = false;
  for_tiles(seen, tile_k, head.seq.len_k, [&](Range keys) {
    w.mask.load(p, head.b, head.h, rows, keys);
    if (!w.mask.any()) return;
    const Range packed{keys.begin,
                       std::min(keys.end, keys.begin + round_up(seen.end - keys.begin, w.panel.key_unit()))};
    kernels.pack(key_source(p, p.k, head, packed, seen, p.dim_qk, w.gathered), Side::left, w.k, nullptr, 0, nullptr,
                 w.panel.staging);
    w.v.load(kernels, key_source(p, p.v, head, packed, seen, p.dim_v, w.gathered), Side::left, nullptr,
             w.panel.staging);
    const bool last = keys.end >= seen.end;
    ReadAhead ahead(p, w.read_ahead);
    if (!last) {
      ahead.add_keys(head, {keys.end, std::min(keys.end + tile_k, seen.end)});
    } else if (next) {
      const Range first = keys_of_queries(p, next->head.seq, next->queries);
      ahead.add_queries(next->head, next->queries);
      if (!first.empty()) ahead.add_keys(next->head, {first.begin, std::min(first.begin + tile_k, first.end)});
    }
    finished = last;
    for_panels([&](Range queries) {
      const MaskVisibility mask = w.mask.panel(queries.begin - rows.begin).visibility;
      const TileKind kind = tile_kind(p, head.seq, queries, keys, mask);
      if (kind != TileKind::skipped) {
        counter.visit(kind);
        // Fetches the rows of O, because writing them would first wait for reading them.
        const Source results{p.o.data,       p.o.dtype,      p.o.at(head.b, head.h, head.seq.q_begin + queries.begin),
                             p.o.row_stride, queries.size(), p.dim_v};
        const Ahead share = ahead.share((queries.begin - rows.begin) / kernels.lanes,
                                        (rows.size() + kernels.lanes - 1) / kernels.lanes, last ? results : Source{});
        attend_panel(p, head, rows, queries, packed, share, w);
      }
      if (last) finish_panel(p, head, rows, queries, sink, w);
    });
  });
  if (!finished) for_panels([&](Range queries) { finish_panel(p, head, rows, queries, sink, w); });
}

template <class T, class E>
struct ForwardLayout {
  const Kernels<T, E>& kernels;
  TileShape shape;
  int64_t tasks, workers;
  size_t scratch_bytes, index_bytes, bytes;

  ForwardLayout(const ForwardProblem& p, const Execution& e, int64_t tile_threads)
      : kernels(kernels_of<T, E>(p)),
        shape(forward_tile(p, kernels.lanes, kernels.step, kernels.tile_q, tile_threads,
                           tuned_choice(tuned::Direction::forward, p))) {
    const Checked tiles = TileIndex::count(p, TileIndex::Side::query, p.heads_q, shape.q);
    workers = worker_count(p, e, tiles);
    Arena index(nullptr), scratch(nullptr);
    index.take<int64_t>(p.batch + 1);
    ForwardScratch<T, E>(scratch, p, kernels, shape);
    bytes = workspace_bytes(index.used() + scratch.used() * workers);
    index_bytes = workspace_bytes(index.used()), scratch_bytes = workspace_bytes(scratch.used());
    tasks = tiles.value("q: the number of tiles is");
  }
};

template <class T, class E>
void run_panels(const ForwardProblem& p, const Execution& e, int64_t tile_threads) {
  const ForwardLayout<T, E> layout(p, e, tile_threads);
  const Workspace workspace(e, layout.bytes);
  auto* block = static_cast<std::byte*>(workspace.data());
  const TileIndex tiles(p, TileIndex::Side::query, p.heads_q, layout.shape.q, Arena(block).take<int64_t>(p.batch + 1));
  TileCounter counter(e.tile_stats);
  run_tasks(e, layout.workers, layout.tasks, [&](int64_t worker, int64_t task) {
    Arena arena(block + layout.index_bytes + static_cast<size_t>(worker) * layout.scratch_bytes);
    ForwardScratch<T, E> scratch(arena, p, layout.kernels, layout.shape);
    const auto at = [&](int64_t n) {
      const auto [b, h, rows] = tiles.coord(n);
      const Head head = head_of(p, b, h);
      return QueryTile{head, {rows.begin, std::min(rows.end, head.seq.len_q)}};
    };
    const QueryTile tile = at(task);
    const auto& [head, queries] = tile;
    if (p.cache && takes_decode(p, head.seq)) return;
    const int64_t later = task + layout.workers;
    const QueryTile next = later < layout.tasks ? at(later) : QueryTile{};
    if (!queries.empty()) attend(p, tile, next.queries.empty() ? nullptr : &next, layout.shape.k, scratch, counter);
    const int64_t first = head.seq.q_begin, computed = std::max(queries.begin, queries.end);
    write_nothing(p, head, {first + computed, first + tiles.coord(task).rows.end}, scratch);
  });
  counter.report(p, {layout.kernels.lanes, layout.shape.k}, e.tile_stats,
                 [&](const Sequence& s) { return !p.cache || !takes_decode(p, s); });
}

size_t panels_size(const ForwardProblem& p, const Execution& e, int64_t tile_threads) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) { return ForwardLayout<T, E>(p, e, tile_threads).bytes; });
}

// Contiguous queries and results of a problem in the workspace, for heads that are not at equal distances.
class Copies {
 public:
  Copies(Arena& arena, const ForwardProblem& p) : original_(p), problem_(p) {
    const auto take = [&](auto& rows, int64_t dim) {
      const Checked head = Checked(p.len_q) * dim, entry = head * p.heads_q;
      rows.row_stride = dim, rows.head_stride = head.at_most(Checked::kLargest);
      rows.batch_stride = entry.at_most(Checked::kLargest);
      rows.data = arena.take<std::byte>(entry * p.batch * size_of(rows.dtype));
    };
    take(problem_.q, p.dim_qk), take(problem_.o, p.dim_v);
    if (p.lse) take(problem_.lse, 1);
  }

  const ForwardProblem& problem() const { return problem_; }
  void load(const Execution& e) const { copy(e, original_.q, problem_.q, original_.dim_qk); }
  void store(const Execution& e) const {
    copy(e, problem_.o, original_.o, original_.dim_v);
    if (original_.lse) copy(e, problem_.lse, original_.lse, 1);
  }

 private:
  template <class From, class To>
  void copy(const Execution& e, const From& from, const To& to, int64_t dim) const {
    const int64_t heads = original_.batch * original_.heads_q, size = size_of(from.dtype);
    run_tasks(e, worker_count(original_, e, heads), heads, [&](int64_t, int64_t n) {
      const int64_t b = n / original_.heads_q, h = n % original_.heads_q;
      for (int64_t row = 0; row < original_.len_q; ++row)
        std::memcpy(
            static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(to.data))) + to.at(b, h, row) * size,
            static_cast<const std::byte*>(from.data) + from.at(b, h, row) * size, static_cast<size_t>(dim * size));
    });
  }

  const ForwardProblem& original_;
  ForwardProblem problem_;
};

struct CopiesLayout {
  size_t copies, bytes;
  CopiesLayout(const ForwardProblem& p, const Execution& e, int64_t tile_threads) {
    Arena arena(nullptr);
    const Copies measured(arena, p);
    const auto panels = static_cast<int64_t>(panels_size(heads_as_rows(measured.problem()), e, tile_threads));
    copies = workspace_bytes(arena.used()), bytes = workspace_bytes(arena.used() + panels);
  }
};

}  // namespace

// Tile statistics count the tiles of each head, so calls that ask for them keep heads apart.
void forward_panels(const ForwardProblem& p, const Execution& e, int64_t tile_threads) {
  const auto run = with_types(p, []<class T, class E>(Types<T, E>) { return run_panels<T, E>; });
  if (!has_heads_as_rows(p) || e.tile_stats) return run(p, e, tile_threads);
  if (is_uniform(p)) return run(heads_as_rows(p), e, tile_threads);

  const CopiesLayout layout(p, e, tile_threads);
  const Workspace workspace(e, layout.bytes);
  Arena arena(workspace.data());
  const Copies copies(arena, p);
  Execution rest = e;
  rest.workspace = static_cast<std::byte*>(workspace.data()) + layout.copies;
  rest.workspace_size = layout.bytes - layout.copies;
  copies.load(e);
  run(heads_as_rows(copies.problem()), rest, tile_threads);
  copies.store(e);
}
size_t forward_panels_workspace_size(const ForwardProblem& p, const Execution& e) {
  const int64_t threads = num_threads(e);
  const size_t apart = panels_size(p, e, threads);
  if (!has_heads_as_rows(p)) return apart;
  const size_t together = is_uniform(p) ? panels_size(heads_as_rows(p), e, threads) : CopiesLayout(p, e, threads).bytes;
  return std::max(apart, together);
}

void forward(const ForwardProblem& p, const Execution& e) {
  takes_decode(p) ? decode(p, e) : forward_panels(p, e, num_threads(e));
}
size_t forward_workspace_size(const ForwardProblem& p, const Execution& e) {
  return takes_decode(p) ? decode_workspace_size(p, e) : forward_panels_workspace_size(p, e);
}

}  // namespace cuflash::cpu
