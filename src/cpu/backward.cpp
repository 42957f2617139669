#include "cpu/backward.h"

#include <algorithm>
#include <cmath>

#include "cpu/backward_tile.h"
#include "cpu/threads.h"
#include "cpu/tile_counter.h"
#include "cpu/workspace.h"

namespace cuflash::cpu {
namespace {

using Side = TileIndex::Side;

// What one worker needs, O(tile * head size). The passes run one after the other, so their sums share the memory.
template <class T>
struct BackwardScratch {
  BackwardTile<T> tile;
  T* d_qk;  // dQ of a query tile, or dK of a key tile
  T* d_v;   // dV of a key tile
  T* d_bias;  // [query or 1][key]
  int64_t qk_stride, v_stride;

  BackwardScratch(Arena& arena, const BackwardProblem& p, TileShape shape)
      : tile(arena, p, shape), qk_stride(round_up(p.dim_qk, kTileUnit)), v_stride(round_up(p.dim_v, kTileUnit)) {
    d_qk = arena.take<T>(std::max(shape.q, shape.k) * qk_stride);
    d_v = arena.take<T>(shape.k * v_stride);
    d_bias = p.dbias ? arena.take<T>(shape.q * shape.k) : nullptr;
  }
};

// One call: the workspace, cut up, and the passes.
template <class T>
class Backward {
 public:
  Backward(const BackwardProblem& p, const Execution& e) : p_(p), e_(e), shape_(tile_shape(p)) {
    query_tiles_ = TileIndex::count(p, Side::query, p.heads_q, shape_.q);
    key_tiles_ = TileIndex::count(p, Side::key, p.heads_k, shape_.k);
    workers_ = worker_count(p, e, std::max({query_tiles_, key_tiles_, bias_tiles(), p.heads_q}));
    Arena scratch(nullptr);
    BackwardScratch<T>(scratch, p, shape_);
    scratch_bytes_ = scratch.used();
    divide(nullptr);
  }

  size_t bytes() const { return shared_bytes_ + static_cast<size_t>(workers_) * scratch_bytes_; }

  void run() {
    const Workspace workspace(e_, bytes());
    divide(workspace.data());
    delta_pass();
    // Each pass walks the same tiles; the statistics are those of the first.
    TileCounter counter, ignored;
    if (p_.dk || p_.dv) key_pass(counter);
    if (p_.dq) query_pass(p_.dk || p_.dv ? ignored : counter);
    if (p_.dbias) bias_pass(p_.dk || p_.dv || p_.dq ? ignored : counter);
    if (p_.dsink) sink_pass();
    counter.report(p_, shape_, e_.tile_stats);
  }

 private:
  void divide(void* block) {
    Arena arena(block);
    query_index_ = arena.take<int64_t>(p_.batch + 1);
    key_index_ = arena.take<int64_t>(p_.batch + 1);
    const int64_t rows = p_.packed() ? p_.cu_q[p_.batch] : p_.len_q;
    const int64_t copies = p_.packed() ? 1 : p_.batch;
    delta_ = {arena.take<T>(copies * p_.heads_q * rows), state_type(p_.dtype), p_.packed() ? 0 : p_.heads_q * rows, rows, 1};
    shared_bytes_ = arena.used();
    scratch_ = block ? static_cast<std::byte*>(block) + shared_bytes_ : nullptr;
  }

  BackwardScratch<T> scratch(int64_t worker) const {
    Arena arena(scratch_ + static_cast<size_t>(worker) * scratch_bytes_);
    return BackwardScratch<T>(arena, p_, shape_);
  }

  // delta = dot(dO, O) - dLSE, row by row. Summed in double: dP - delta cancels.
  void delta_pass() {
    const TileIndex tiles(p_, Side::query, p_.heads_q, shape_.q, query_index_);
    run_tasks(e_, workers_, query_tiles_, [&](int64_t worker, int64_t task) {
      BackwardScratch<T> w = scratch(worker);
      const auto [b, h, rows] = tiles.place(task);
      const Sequence seq = sequence_of(p_, b);
      for (int64_t i = rows.begin; i < std::min(rows.end, seq.len_q); ++i) {
        const int64_t row = seq.q_begin + i;
        T* o = w.d_v;
        T* dout = w.tile.tile.staging;
        load_row(p_.o.data, p_.o.dtype, p_.o.at(b, h, row), p_.dim_v, o);
        load_row(p_.dout.data, p_.dout.dtype, p_.dout.at(b, h, row), p_.dim_v, dout);
        double sum = 0;
        for (int64_t d = 0; d < p_.dim_v; ++d) sum += static_cast<double>(o[d]) * static_cast<double>(dout[d]);
        if (p_.dlse) sum -= load_element(p_.dlse.data, p_.dlse.dtype, p_.dlse.at(b, h, row));
        static_cast<T*>(delta_.data)[delta_.at(b, h, row)] = static_cast<T>(sum);
      }
    });
  }

  // dV = drop(P)^T dO and dK = dS^T (scale Q) of one key tile, summed over the query heads that share it.
  void key_pass(TileCounter& counter) {
    const TileIndex tiles(p_, Side::key, p_.heads_k, shape_.k, key_index_);
    run_tasks(e_, workers_, key_tiles_, [&](int64_t worker, int64_t task) {
      BackwardScratch<T> w = scratch(worker);
      const auto [b, hk, rows] = tiles.place(task);
      std::fill_n(w.d_qk, shape_.k * w.qk_stride, T{0});
      std::fill_n(w.d_v, shape_.k * w.v_stride, T{0});
      for (int64_t h = hk * p_.group(); h < (hk + 1) * p_.group(); ++h) add_head_to_keys(head_of(p_, b, h), rows, w, counter);
      const int64_t first = sequence_of(p_, b).k_begin;
      store_rows(p_.dk, b, hk, first, rows, w.d_qk, w.qk_stride, p_.dim_qk);
      store_rows(p_.dv, b, hk, first, rows, w.d_v, w.v_stride, p_.dim_v);
    });
  }

  void add_head_to_keys(const Head& head, Range rows, BackwardScratch<T>& w, TileCounter& counter) {
    const Range keys{rows.begin, std::min(rows.end, head.seq.len_k)};
    if (keys.empty()) return;
    w.tile.load_keys(p_, head, keys);
    const Range seen_by = queries_of_keys(p_, head.seq, keys);
    for_tiles(seen_by, shape_.q, head.seq.len_q, [&](Range queries) {
      counter.visit(tile_kind(p_, head.seq, queries, keys));
      w.tile.load_queries(p_, head, queries, delta_);
      w.tile.differentiate(p_, head, queries, keys, At::product);
      if (p_.dv)
        accumulate_over_queries(w.tile.tile, w.tile.flip(w.tile.tile.s), w.tile.dout, p_.dim_v, w.d_v, w.v_stride);
      if (p_.dk) accumulate_over_queries(w.tile.tile, w.tile.flip(w.tile.ds), w.tile.q, p_.dim_qk, w.d_qk, w.qk_stride);
    });
  }

  // dQ = scale dS K of one query tile.
  void query_pass(TileCounter& counter) {
    const TileIndex tiles(p_, Side::query, p_.heads_q, shape_.q, query_index_);
    run_tasks(e_, workers_, query_tiles_, [&](int64_t worker, int64_t task) {
      BackwardScratch<T> w = scratch(worker);
      const auto [b, h, rows] = tiles.place(task);
      const Head head = head_of(p_, b, h);
      const Range queries{rows.begin, std::min(rows.end, head.seq.len_q)};
      std::fill_n(w.d_qk, shape_.q * w.qk_stride, T{0});
      if (!queries.empty()) {
        w.tile.load_queries(p_, head, queries, delta_);
        for_tiles(keys_of_queries(p_, head.seq, queries), shape_.k, head.seq.len_k, [&](Range keys) {
          counter.visit(tile_kind(p_, head.seq, queries, keys));
          w.tile.load_keys(p_, head, keys);
          w.tile.differentiate(p_, head, queries, keys, At::product);
          accumulate_over_keys(w.tile.tile, w.tile.ds, w.tile.k, p_.dim_qk, w.d_qk, w.qk_stride);
        });
      }
      for (int64_t n = 0; n < shape_.q * w.qk_stride; ++n) w.d_qk[n] *= static_cast<T>(p_.scale);
      store_rows(p_.dq, b, h, head.seq.q_begin, rows, w.d_qk, w.qk_stride, p_.dim_qk);
    });
  }

  int64_t bias_query_tiles() const { return p_.bias_len_q == 1 ? 1 : (p_.bias_len_q + shape_.q - 1) / shape_.q; }
  int64_t bias_key_tiles() const { return (p_.len_k + shape_.k - 1) / shape_.k; }
  int64_t bias_tiles() const { return p_.bias_batch * p_.bias_heads * bias_query_tiles() * bias_key_tiles(); }

  // dBias of one tile of the bias: dS, summed over the batch entries, heads and queries that share it.
  void bias_pass(TileCounter& counter) {
    run_tasks(e_, workers_, bias_tiles(), [&](int64_t worker, int64_t task) {
      BackwardScratch<T> w = scratch(worker);
      const int64_t tile_k = task % bias_key_tiles(), tile_q = task / bias_key_tiles() % bias_query_tiles();
      const int64_t bias_head = task / bias_key_tiles() / bias_query_tiles();
      const int64_t bias_b = bias_head / p_.bias_heads, bias_h = bias_head % p_.bias_heads;
      const Range keys{tile_k * shape_.k, std::min((tile_k + 1) * shape_.k, p_.len_k)};
      const bool one_row = p_.bias_len_q == 1;
      const Range rows = one_row ? Range{0, 1} : Range{tile_q * shape_.q, std::min((tile_q + 1) * shape_.q, p_.bias_len_q)};
      const Range summed_rows = one_row ? Range{0, p_.len_q} : rows;
      std::fill_n(w.d_bias, shape_.q * shape_.k, T{0});
      for (int64_t b = bias_b; b < (p_.bias_batch == 1 ? p_.batch : bias_b + 1); ++b)
        for (int64_t h = bias_h; h < (p_.bias_heads == 1 ? p_.heads_q : bias_h + 1); ++h)
          add_head_to_bias(head_of(p_, b, h), summed_rows, keys, one_row, w, counter);
      for (int64_t i = 0; i < rows.size(); ++i)
        store_row(p_.dbias.data, p_.dbias.dtype, p_.dbias.at(bias_b, bias_h, rows.begin + i) + keys.begin, keys.size(),
                  w.d_bias + i * shape_.k);
    });
  }

  void add_head_to_bias(const Head& head, Range rows, Range bias_keys, bool one_row, BackwardScratch<T>& w,
                        TileCounter& counter) {
    const Range keys{bias_keys.begin, std::min(bias_keys.end, head.seq.len_k)};
    if (keys.empty()) return;
    w.tile.load_keys(p_, head, keys);
    const Range seen_by = queries_of_keys(p_, head.seq, keys);
    const Range both{std::max(rows.begin, seen_by.begin), std::min(rows.end, seen_by.end)};
    for_tiles(both, shape_.q, head.seq.len_q, [&](Range queries) {
      counter.visit(tile_kind(p_, head.seq, queries, keys));
      w.tile.load_queries(p_, head, queries, delta_);
      w.tile.differentiate(p_, head, queries, keys, At::softmax);
      for (int64_t k = 0; k < keys.size(); ++k)
        for (int64_t q = 0; q < queries.size(); ++q)
          w.d_bias[(one_row ? 0 : q) * shape_.k + k] += w.tile.ds[k * shape_.q + q];
    });
  }

  // dSink_h = -sum over rows of exp(sink_h - LSE) delta.
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
      store_row(p_.dsink.data, p_.dsink.dtype, p_.dsink.at(0, h), 1, &gradient);
    });
  }

  // Calls body with every tile of [0, length) that meets the range.
  template <class Body>
  static void for_tiles(Range range, int64_t tile, int64_t length, Body body) {
    for (int64_t begin = range.begin / tile * tile; begin < range.end; begin += tile)
      body(Range{begin, std::min(begin + tile, length)});
  }

  static void store_rows(const Rows& to, int64_t b, int64_t h, int64_t first, Range rows, const T* from, int64_t stride,
                         int64_t dim) {
    if (!to) return;
    for (int64_t n = 0; n < rows.size(); ++n)
      store_row(to.data, to.dtype, to.at(b, h, first + rows.begin + n), dim, from + n * stride);
  }

  const BackwardProblem& p_;
  const Execution& e_;
  TileShape shape_;
  int64_t query_tiles_ = 0, key_tiles_ = 0, workers_ = 0;
  size_t shared_bytes_ = 0, scratch_bytes_ = 0;
  int64_t* query_index_ = nullptr;
  int64_t* key_index_ = nullptr;
  Rows delta_;  // [batch, heads_q, len_q] in T
  std::byte* scratch_ = nullptr;
};

}  // namespace

void backward(const BackwardProblem& p, const Execution& e) {
  p.dtype == DType::f64 ? Backward<double>(p, e).run() : Backward<float>(p, e).run();
}

size_t backward_workspace_size(const BackwardProblem& p, const Execution& e) {
  return p.dtype == DType::f64 ? Backward<double>(p, e).bytes() : Backward<float>(p, e).bytes();
}

}  // namespace cuflash::cpu
