#include "cpu/backward.h"

#include <algorithm>
#include <cmath>

#include "cpu/backward_scratch.h"
#include "cpu/delta.h"
#include "cpu/plan/tuned_tile.h"
#include "cpu/plan/workspace.h"
#include "cpu/threads/threads.h"
#include "cpu/tile/read_ahead.h"
#include "cpu/tile/tile_counter.h"

namespace cuflash::cpu {
namespace {

// One backward call: the layout of its workspace, and its passes.
template <class T, class E>
class Backward {
 public:
  Backward(const BackwardProblem& p, const Execution& e)
      : p_(p),
        e_(e),
        kernels_(kernels_of<T, E>(p)),
        shape_(backward_tile(p, kernels_.lanes, kernels_.step, tuned_choice(tuned::Direction::backward, p))),
        ranges_(ranges_of(p.len_k)),
        read_ahead_(kernels_.fetches_ahead && !fits_second_level_cache(p)) {
    const Checked panels = TileIndex::count(p, TileIndex::Side::query, p.heads_q, kernels_.lanes);
    dq_size_ = round_up(p.dim_qk, kernels_.rows) * kernels_.lanes;
    bias_tiles_ = bias_tiles().value("dbias: the number of tiles is");
    whole_heads_ = ranges_ == 1 || p.batch * p.heads_k >= 32;
    const int64_t max_tasks = std::max({panels.at_most(Checked::kLargest), key_tasks(), bias_tiles_, p.heads_q});
    workers_ = worker_count(p, e, max_tasks);
    sums_dbias_ = can_sum_dbias() && strip_tasks() >= workers_;
    if (sums_dbias_) whole_heads_ = false;
    dbias_rows_ = !p.dbias ? 0 : sums_dbias_ ? strips() * round_up(p.len_q, kernels_.lanes) : shape_.q;
    Arena scratch(nullptr), shared(nullptr);
    BackwardScratch<T, E>(scratch, p, kernels_, shape_, dbias_rows_);
    lay_out(shared, panels);
    bytes_ = workspace_bytes(shared.used() + scratch.used() * workers_);
    shared_bytes_ = workspace_bytes(shared.used()), scratch_bytes_ = workspace_bytes(scratch.used());
    panels_ = panels.value("q: the number of panels is");
  }

  size_t bytes() const { return bytes_; }

  void run() {
    const Workspace workspace(e_, bytes());
    Arena arena(workspace.data());
    lay_out(arena, panels_);
    scratch_ = static_cast<std::byte*>(workspace.data()) + shared_bytes_;
    const TileIndex panels(p_, TileIndex::Side::query, p_.heads_q, kernels_.lanes, panel_index_);
    TileCounter counter(e_.tile_stats), ignored(nullptr);
    delta_pass(panels);
    const bool main = p_.dq || p_.dk || p_.dv;
    if (main) sums_dbias_ ? strip_pass(panels, counter) : key_pass(panels, counter);
    if (p_.dq && !whole_heads_) query_pass(panels);
    if (p_.dbias && !(main && (bias_is_dscores() || sums_dbias_)))
      bias_pass(main ? ignored : counter);  // statistics count the first pass only
    if (p_.dsink) sink_pass();
    counter.report(p_, {kernels_.lanes, shape_.k}, e_.tile_stats);
  }

 private:
  // The number of ranges into which the keys of a sequence are cut, each with a separate dQ buffer: enough to fill a
  // machine if there are tiles for it, and more if each range stays long enough to justify the memory. It depends only
  // on the sequence, so no result depends on the number of threads or on the rest of the batch.
  int64_t ranges_of(int64_t len_k) const {
    const int64_t heads = std::max<int64_t>(1, p_.heads_k);
    const auto for_tasks = [&](int64_t tasks) { return (tasks + heads - 1) / heads; };
    const int64_t few = std::min(for_tasks(16), len_k / shape_.k), many = std::min(for_tasks(32), len_k / 512);
    return std::clamp<int64_t>(std::max(few, many), 1, 8);
  }

  // The number of rows of dK and dV that are written. Dense rows beyond the length are written as 0.
  int64_t written_keys(int64_t b) const { return p_.packed() ? sequence_of(p_, b).len_k : p_.len_k; }

  void lay_out(Arena& arena, const Checked& panels) {
    panel_index_ = arena.take<int64_t>(p_.batch + 1);
    const int64_t rows = p_.packed() ? p_.cu_q[p_.batch] : p_.len_q;
    const int64_t copies = p_.packed() ? 1 : p_.batch;
    delta_ = {arena.take<T>(Checked(copies) * p_.heads_q * rows), state_type(p_.dtype),
              p_.packed() ? 0 : p_.heads_q * rows, rows, 1};
    // A task that computes all of dQ of its heads needs a buffer only while it runs, and one more to add a range.
    head_panels_ = (p_.len_q + kernels_.lanes - 1) / kernels_.lanes;
    const int64_t buffers = std::min(workers_, p_.batch * p_.heads_k) * std::min<int64_t>(ranges_, 2);
    const Checked all_panels = whole_heads_ ? Checked(buffers) * p_.group() * head_panels_ : panels * ranges_;
    dq_ = p_.dq ? arena.take<T>(all_panels * dq_size_) : nullptr;
  }

  BackwardScratch<T, E> scratch(int64_t worker) const {
    Arena arena(scratch_ + static_cast<size_t>(worker) * scratch_bytes_);
    return BackwardScratch<T, E>(arena, p_, kernels_, shape_, dbias_rows_);
  }

  // Computes delta = dot(dO, O) - dLSE. A task takes many panels, because a short pass is not worth waking a worker.
  void delta_pass(const TileIndex& panels) {
    constexpr int64_t kPanels = 32;
    run_tasks(e_, workers_, (panels_ + kPanels - 1) / kPanels, [&](int64_t worker, int64_t task) {
      const BackwardScratch<T, E> w = scratch(worker);
      for (int64_t panel = task * kPanels; panel < std::min((task + 1) * kPanels, panels_); ++panel)
        delta_of(panels.coord(panel), w.panel.staging);
    });
  }

  void delta_of(const TileIndex::TileCoord& coord, T* staging) {
    const auto& [b, h, rows] = coord;
    const Sequence seq = sequence_of(p_, b);
    for (int64_t row = seq.q_begin + rows.begin; row < seq.q_begin + std::min(rows.end, seq.len_q); ++row)
      static_cast<T*>(delta_.data)[delta_.at(b, h, row)] = row_delta(p_, kernels_, b, h, row, staging);
  }

  // Computes dK and dV of the keys, summed over the query heads that share them, and dQ or the share of each range.
  void key_pass(const TileIndex& panels, TileCounter& counter) {
    run_tasks(e_, workers_, key_tasks(), [&](int64_t worker, int64_t task) {
      BackwardScratch<T, E> w = scratch(worker);
      const int64_t head = whole_heads_ ? task : task / ranges_, b = head / p_.heads_k, hk = head % p_.heads_k;
      if (whole_heads_) {
        all_ranges(panels, b, hk, worker, w, counter);
      } else if (task % ranges_ < ranges_of(written_keys(b))) {
        T* dq = dq_ ? dq_ + (task % ranges_ * panels_ + panels.first_tile(b, hk * p_.group())) * dq_size_ : nullptr;
        one_range(panels, b, hk, task % ranges_, dq, panels.tiles(b), w, counter);
      }
    });
  }

  // Cannot overflow: heads are split into ranges only if there are few of them.
  int64_t key_tasks() const { return p_.batch * p_.heads_k * (whole_heads_ ? 1 : ranges_); }

  // dq: panels of the heads of the group, `stride` panels per head.
  void one_range(const TileIndex& panels, int64_t b, int64_t hk, int64_t range, T* dq, int64_t stride,
                 BackwardScratch<T, E>& w, TileCounter& counter) {
    for (int64_t n = 0; dq && n < p_.group(); ++n)
      std::fill_n(dq + n * stride * dq_size_, panels.tiles(b) * dq_size_, T{0});
    const int64_t written = written_keys(b);
    for_tiles(keys_of_range(written, range), shape_.k, written,
              [&](Range rows) { key_tile(b, hk, rows, dq, stride, w, counter); });
  }

  Range keys_of_range(int64_t written, int64_t range) const {
    const int64_t ranges = ranges_of(written), tiles = (written + shape_.k - 1) / shape_.k;
    return {tiles * range / ranges * shape_.k, std::min(tiles * (range + 1) / ranges * shape_.k, written)};
  }

  // Computes all ranges in one task: the same sums in the same order as with one task per range.
  void all_ranges(const TileIndex& panels, int64_t b, int64_t hk, int64_t worker, BackwardScratch<T, E>& w,
                  TileCounter& counter) {
    const int64_t size = p_.group() * head_panels_ * dq_size_;
    T* dq = dq_ ? dq_ + worker * std::min<int64_t>(ranges_, 2) * size : nullptr;
    one_range(panels, b, hk, 0, dq, head_panels_, w, counter);
    for (int64_t range = 1; range < ranges_of(written_keys(b)); ++range) {
      one_range(panels, b, hk, range, dq ? dq + size : nullptr, head_panels_, w, counter);
      if (!dq) continue;
      for (int64_t n = 0; n < p_.group(); ++n) {
        T* sum = dq + n * head_panels_ * dq_size_;
        for (int64_t i = 0; i < panels.tiles(b) * dq_size_; ++i) sum[i] += sum[size + i];
      }
    }
    if (!dq) return;
    const int64_t rows = p_.packed() ? sequence_of(p_, b).len_q : p_.len_q;
    for (int64_t n = 0; n < p_.group(); ++n)
      for_tiles({0, rows}, kernels_.lanes, rows, [&](Range panel) {
        store_dq(b, hk * p_.group() + n, panel, dq + (n * head_panels_ + panel.begin / kernels_.lanes) * dq_size_, w);
      });
  }

  // dq and stride: see one_range.
  void key_tile(int64_t b, int64_t hk, Range rows, T* dq, int64_t stride, BackwardScratch<T, E>& w,
                TileCounter& counter) {
    const auto for_heads = [&](auto body) {
      for (int64_t n = 0; n < p_.group(); ++n) body(hk * p_.group() + n, dq ? dq + n * stride * dq_size_ : nullptr);
    };
    std::fill_n(w.dk, w.key_rows * round_up(p_.dim_qk, kernels_.lanes), T{0});
    std::fill_n(w.dv, w.key_rows * round_up(p_.dim_v, kernels_.lanes), T{0});
    const Sequence seq = sequence_of(p_, b);
    const Range keys{rows.begin, std::max(rows.begin, std::min(rows.end, seq.len_k))};
    if (bias_is_dscores()) for_heads([&](int64_t h, T*) { clear_dbias(head_of(p_, b, h), rows, w); });
    if (!keys.empty() && !queries_of_keys(p_, seq, keys).empty()) {  // keys that no query sees are not read
      w.load_keys(p_, head_of(p_, b, hk * p_.group()), keys);
      for_heads([&](int64_t h, T* dq) { add_head(head_of(p_, b, h), keys, dq, w, counter); });
    }
    const auto store = [&](const Rows& to, const T* from, T factor, int64_t dim) {
      if (to)
        store_key_rows(to, to.at(b, hk, seq.k_begin + rows.begin), rows.size(), keys.size(), from, factor, dim, w);
    };
    store(p_.dk, w.dk, static_cast<T>(p_.scale), p_.dim_qk);
    store(p_.dv, w.dv, 1, p_.dim_v);
  }

  void add_head(const Head& head, Range keys, T* dq, BackwardScratch<T, E>& w, TileCounter& counter) {
    const Range seen_by = queries_of_keys(p_, head.seq, keys);
    for_tiles(seen_by, shape_.q, head.seq.len_q, [&](Range tile) {
      w.mask.load(p_, head.b, head.h, tile, keys);
      if (!w.mask.any()) return;
      w.load_queries(p_, head, tile, delta_);
      const Range next{tile.end, std::min(tile.end + shape_.q, seen_by.end)};
      ReadAhead ahead(p_, read_ahead_ && !next.empty());
      ahead.add_queries(head, next);
      ahead.add(source_of(p_.dout, head.b, head.h, head.seq.q_begin, next, p_.dim_v));
      Range added{tile.begin, tile.begin};  // neighbouring panels that see a key
      const auto flush = [&] {
        if (!added.empty()) w.flush_queries(p_, {added.begin - tile.begin, added.end - tile.begin}, keys.size());
      };
      for_tiles(tile, kernels_.lanes, tile.end, [&](Range queries) {
        const MaskVisibility mask = w.mask.panel(queries.begin - tile.begin).visibility;
        const TileKind kind = tile_kind(p_, head.seq, queries, keys, mask);
        if (kind == TileKind::skipped) return;
        counter.visit(kind);
        if (queries.begin != added.end) flush(), added.begin = queries.begin;
        added.end = queries.end;
        w.differentiate(p_, head, tile, queries, keys, GradientAt::dot_product,
                        ahead.share((queries.begin - tile.begin) / kernels_.lanes, shape_.q / kernels_.lanes));
        if (bias_is_dscores()) store_dbias(head, w);
        if (sums_dbias_) add_to_strip(head, w);
        w.add_panel_to_keys(p_, tile, keys.size());
        if (dq) w.panel.add_keys(w.dp, w.k, dq + queries.begin / kernels_.lanes * dq_size_);
      });
      flush();
    });
  }

  // Adds the shares of dQ in the order of the ranges.
  void query_pass(const TileIndex& panels) {
    run_tasks(e_, workers_, panels_, [&](int64_t worker, int64_t task) {
      BackwardScratch<T, E> w = scratch(worker);
      const auto [b, h, rows] = panels.coord(task);
      T* sum = dq_ + (panels.first_tile(b, h) + rows.begin / kernels_.lanes) * dq_size_;
      for (int64_t range = 1; range < ranges_of(written_keys(b)); ++range)
        for (int64_t n = 0; n < dq_size_; ++n) sum[n] += sum[range * panels_ * dq_size_ + n];
      store_dq(b, h, rows, sum, w);
    });
  }

  // Writes the rows of one panel; rows beyond the length of the sequence are 0.
  void store_dq(int64_t b, int64_t h, Range rows, const T* sum, BackwardScratch<T, E>& w) const {
    const Sequence seq = sequence_of(p_, b);
    std::fill_n(w.lse, kernels_.lanes, static_cast<T>(p_.scale));
    kernels_.unpack(p_.dim_qk, rows.size(), sum, w.lse, w.panel.staging);
    for (int64_t i = 0; i < rows.size(); ++i) {
      T* row = w.panel.staging + i * p_.dim_qk;
      if (rows.begin + i >= seq.len_q) std::fill_n(row, p_.dim_qk, T{0});
      kernels_.store(p_.dq.data, p_.dq.dtype, p_.dq.at(b, h, seq.q_begin + rows.begin + i), p_.dim_qk, row);
    }
  }

  int64_t bias_query_tiles() const { return p_.bias_len_q == 1 ? 1 : (p_.bias_len_q + shape_.q - 1) / shape_.q; }
  int64_t bias_key_tiles() const { return (p_.bias_len_k + shape_.k - 1) / shape_.k; }
  Checked bias_tiles() const { return Checked(p_.bias_batch) * p_.bias_heads * bias_query_tiles() * bias_key_tiles(); }

  // Whether the gradient of the bias is dS, which the pass over the keys writes: if the bias is not broadcast.
  bool bias_is_dscores() const {
    return p_.dbias && !p_.packed() && p_.softcap == 0 && p_.bias_batch == p_.batch && p_.bias_heads == p_.heads_q &&
           p_.bias_len_q == p_.len_q;
  }

  void store_dbias(const Head& head, BackwardScratch<T, E>& w) const {
    const auto& [queries, keys] = std::pair(w.panel.queries, w.panel.keys);
    write_dbias(head.b, head.h, queries.begin, queries.size(), keys, w.dp, w);
  }

  // Writes rows of dBias from sums [key][lane].
  void write_dbias(int64_t b, int64_t h, int64_t row, int64_t rows, Range keys, const T* sums,
                   BackwardScratch<T, E>& w) const {
    std::fill_n(w.ones, kernels_.lanes, T{1});
    const Destination to{p_.dbias.data, p_.dbias.dtype, p_.dbias.at(b, h, row) + keys.begin, p_.dbias.row_stride};
    kernels_.unpack_rows(keys.size(), rows, sums, w.ones, to, w.panel.staging);
  }

  // Zeroes the gradient of pairs that no panel visits.
  void clear_dbias(const Head& head, Range keys, BackwardScratch<T, E>& w) const {
    const bool all_visited = !p_.has_mask() && head.seq.len_q == p_.len_q && keys.end <= head.seq.len_k &&
                             tile_kind(p_, head.seq, {0, p_.len_q}, keys) == TileKind::full;
    if (all_visited) return;
    std::fill_n(w.dbias, keys.size(), T{0});
    for (int64_t i = 0; i < p_.len_q; ++i)
      kernels_.store(p_.dbias.data, p_.dbias.dtype, p_.dbias.at(head.b, head.h, i) + keys.begin, keys.size(), w.dbias);
  }

  // Whether key tasks sum dBias. If heads or batch entries share a bias, a task can visit all of them with the same
  // keys and add their dS: a strip of the gradient, all queries by a tile of keys. That saves a pass that would
  // recompute dS, but leaves few tasks. The sums are the same, in the same order, so the number of threads may decide.
  bool can_sum_dbias() const {
    return p_.dbias && !bias_is_dscores() && !p_.packed() && p_.softcap == 0 && p_.bias_len_q == p_.len_q &&
           p_.bias_len_k == p_.len_k && (p_.dq || p_.dk || p_.dv);
  }
  int64_t end_of_batch(int64_t bias_b) const { return p_.bias_batch == 1 ? p_.batch : bias_b + 1; }
  int64_t strips() const { return p_.bias_heads == 1 ? 1 : p_.group(); }  // strips of a task
  int64_t strip_heads() const { return p_.bias_heads == 1 ? 1 : p_.heads_k; }
  int64_t strip_tasks() const { return p_.bias_batch * strip_heads() * ranges_; }
  T* strip_of(const Head& head, BackwardScratch<T, E>& w) const {
    const int64_t n = p_.bias_heads == 1 ? 0 : head.h - head.hk * p_.group();
    return w.dbias + n * round_up(p_.len_q, kernels_.lanes) * shape_.k;
  }

  // Computes what key_pass does, and dBias.
  void strip_pass(const TileIndex& panels, TileCounter& counter) {
    run_tasks(e_, workers_, strip_tasks(), [&](int64_t worker, int64_t task) {
      BackwardScratch<T, E> w = scratch(worker);
      const int64_t range = task % ranges_, strip = task / ranges_;
      const int64_t bias_b = strip / strip_heads(), bias_h = strip % strip_heads();
      const auto for_shares = [&](auto body) {
        for (int64_t b = bias_b; b < end_of_batch(bias_b); ++b)
          for (int64_t hk = bias_h; hk < (p_.bias_heads == 1 ? p_.heads_k : bias_h + 1); ++hk) {
            const int64_t first = range * panels_ + panels.first_tile(b, hk * p_.group());
            body(b, hk, dq_ ? dq_ + first * dq_size_ : nullptr);
          }
      };
      for_shares([&](int64_t b, int64_t, T* dq) {
        if (dq) std::fill_n(dq, p_.group() * panels.tiles(b) * dq_size_, T{0});
      });
      for_tiles(keys_of_range(p_.len_k, range), shape_.k, p_.len_k, [&](Range keys) {
        std::fill_n(w.dbias, dbias_rows_ * shape_.k, T{0});
        for_shares([&](int64_t b, int64_t hk, T* dq) { key_tile(b, hk, keys, dq, panels.tiles(b), w, counter); });
        for (int64_t n = 0; n < strips(); ++n)
          write_panels(bias_b, bias_h * strips() + n, {0, p_.len_q}, keys,
                       w.dbias + n * round_up(p_.len_q, kernels_.lanes) * shape_.k, w);
      });
    });
  }

  void add_to_strip(const Head& head, BackwardScratch<T, E>& w) const {
    clear_lanes_beyond(w.panel.queries.size(), w);
    const int64_t first = w.panel.queries.begin * shape_.k + w.panel.first_key * kernels_.lanes;
    kernels_.add(w.panel.keys.size(), w.dp, strip_of(head, w) + first);
  }

  // Clears lanes beyond the last query, which are rows of the bias for longer sequences, and are NaN if a key holds
  // one.
  void clear_lanes_beyond(int64_t queries, BackwardScratch<T, E>& w) const {
    for (int64_t k = 0; queries < kernels_.lanes && k < w.panel.keys.size(); ++k)
      std::fill_n(w.dp + k * kernels_.lanes + queries, kernels_.lanes - queries, T{0});
  }

  // Writes rows of dBias from sums [panel][key][lane].
  void write_panels(int64_t b, int64_t h, Range rows, Range keys, const T* sums, BackwardScratch<T, E>& w) const {
    for_tiles(rows, kernels_.lanes, rows.end, [&](Range panel) {
      write_dbias(b, h, panel.begin, panel.size(), keys, sums + (panel.begin - rows.begin) * shape_.k, w);
    });
  }

  // Computes dBias of one tile of the bias: dS summed over the batch entries, heads and queries that share it.
  void bias_pass(TileCounter& counter) {
    run_tasks(e_, workers_, bias_tiles_, [&](int64_t worker, int64_t task) {
      BackwardScratch<T, E> w = scratch(worker);
      const int64_t tile_k = task % bias_key_tiles(), tile_q = task / bias_key_tiles() % bias_query_tiles();
      const int64_t bias_head = task / bias_key_tiles() / bias_query_tiles();
      const int64_t bias_b = bias_head / p_.bias_heads, bias_h = bias_head % p_.bias_heads;
      const Range keys{tile_k * shape_.k, std::min((tile_k + 1) * shape_.k, p_.bias_len_k)};
      const bool one_row = p_.bias_len_q == 1;
      const Range rows =
          one_row ? Range{0, 1} : Range{tile_q * shape_.q, std::min((tile_q + 1) * shape_.q, p_.bias_len_q)};
      const Range summed_rows = one_row ? Range{0, p_.len_q} : rows;
      std::fill_n(w.dbias, one_row ? shape_.k : round_up(rows.size(), kernels_.lanes) * shape_.k, T{0});
      for (int64_t b = bias_b; b < end_of_batch(bias_b); ++b)
        for (int64_t h = bias_h; h < (p_.bias_heads == 1 ? p_.heads_q : bias_h + 1); ++h)
          add_head_to_bias(head_of(p_, b, h), summed_rows, keys, one_row, w, counter);
      if (one_row)
        return kernels_.store(p_.dbias.data, p_.dbias.dtype, p_.dbias.at(bias_b, bias_h, 0) + keys.begin, keys.size(),
                              w.dbias);
      write_panels(bias_b, bias_h, rows, keys, w.dbias, w);
    });
  }

  void add_head_to_bias(const Head& head, Range rows, Range bias_keys, bool one_row, BackwardScratch<T, E>& w,
                        TileCounter& counter) {
    const Range keys{bias_keys.begin, std::min(bias_keys.end, head.seq.len_k)};
    if (keys.empty()) return;
    const Range seen_by = queries_of_keys(p_, head.seq, keys);
    const Range both{std::max(rows.begin, seen_by.begin), std::min(rows.end, seen_by.end)};
    if (both.empty()) return;
    w.load_keys(p_, head, keys, Loads::for_scores);
    for_tiles(both, shape_.q, head.seq.len_q, [&](Range tile) {
      w.mask.load(p_, head.b, head.h, tile, keys);
      if (!w.mask.any()) return;
      w.load_queries(p_, head, tile, delta_, Loads::for_scores);
      for_tiles(tile, kernels_.lanes, tile.end, [&](Range queries) {
        const MaskVisibility mask = w.mask.panel(queries.begin - tile.begin).visibility;
        const TileKind kind = tile_kind(p_, head.seq, queries, keys, mask);
        if (kind == TileKind::skipped) return;
        counter.visit(kind);
        w.differentiate(p_, head, tile, queries, keys, GradientAt::softmax_input);
        if (!one_row) {
          clear_lanes_beyond(queries.size(), w);
          // Panels stay as they are until everything is added; bias tiles begin with a whole panel.
          T* sums = w.dbias + (queries.begin - rows.begin) * shape_.k + w.panel.first_key * kernels_.lanes;
          return kernels_.add(w.panel.keys.size(), w.dp, sums);
        }
        T* sum = w.dbias + w.panel.first_key;
        for (int64_t k = 0; k < w.panel.keys.size(); ++k)
          for (int64_t q = 0; q < queries.size(); ++q) sum[k] += w.dp[k * kernels_.lanes + q];
      });
    });
  }

  // Computes dSink_h = -sum over rows of exp(sink_h - LSE) delta.
  void sink_pass() {
    run_tasks(e_, workers_, p_.heads_q, [&](int64_t, int64_t h) {
      const double sink = load_element(p_.sink.data, p_.sink.dtype, p_.sink.at(0, h));
      double sum = 0;
      for (int64_t b = 0; b < p_.batch; ++b) {
        const Sequence seq = sequence_of(p_, b);
        for (int64_t row = seq.q_begin; row < seq.q_begin + seq.len_q; ++row) {
          const double lse = load_element(p_.lse.data, p_.lse.dtype, p_.lse.at(b, h, row));
          if (lse == -INFINITY) continue;
          sum -= std::exp(sink - lse) * static_cast<double>(static_cast<const T*>(delta_.data)[delta_.at(b, h, row)]);
        }
      }
      const T gradient = static_cast<T>(sum);
      kernels_.store(p_.dsink.data, p_.dsink.dtype, p_.dsink.at(0, h), 1, &gradient);
    });
  }

  // Writes `rows` rows of from [dim / lanes][key][lane] times factor. The first `computed` hold sums, the others are 0.
  void store_key_rows(const Rows& to, int64_t begin, int64_t rows, int64_t computed, const T* from, T factor,
                      int64_t dim, BackwardScratch<T, E>& w) const {
    const int64_t lanes = kernels_.lanes;
    T* row = w.panel.staging;
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t d = 0; d < dim; d += lanes) {
        const T* sums = from + (d / lanes * w.key_rows + n) * lanes;
        for (int64_t i = 0; i < std::min(lanes, dim - d); ++i) row[d + i] = n < computed ? factor * sums[i] : T{0};
      }
      kernels_.store(to.data, to.dtype, begin + n * to.row_stride, dim, row);
    }
  }

  const BackwardProblem& p_;
  const Execution& e_;
  const Kernels<T, E>& kernels_;
  TileShape shape_;
  int64_t ranges_;            // ranges of the longest sequence
  bool whole_heads_ = false;  // a task takes all ranges of its heads, because there are enough tasks
  bool sums_dbias_ = false;   // strip_pass instead of key_pass and bias_pass
  bool read_ahead_;
  int64_t panels_ = 0, head_panels_ = 0, dq_size_ = 0, bias_tiles_ = 0, workers_ = 0, dbias_rows_ = 0;
  size_t bytes_ = 0, shared_bytes_ = 0, scratch_bytes_ = 0;
  int64_t* panel_index_ = nullptr;
  Rows delta_;       // [batch, heads_q, len_q] in T
  T* dq_ = nullptr;  // [range][panel][dim_qk][lane]; whole heads: [worker][1 or 2][head of the group][panel]...
  std::byte* scratch_ = nullptr;
};

}  // namespace

void backward(const BackwardProblem& p, const Execution& e) {
  with_types(p, [&]<class T, class E>(Types<T, E>) { Backward<T, E>(p, e).run(); });
}

size_t backward_workspace_size(const BackwardProblem& p, const Execution& e) {
  return with_types(p, [&]<class T, class E>(Types<T, E>) { return Backward<T, E>(p, e).bytes(); });
}

}  // namespace cuflash::cpu
