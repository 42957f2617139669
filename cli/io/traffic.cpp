#include "cli/io/traffic.h"

#include <algorithm>
#include <variant>

#include "problem/visibility.h"

namespace cuflash::cli {

namespace {

double real(int64_t n) { return static_cast<double>(n); }
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
double bytes_of(DType type) { return real(size_of(type)); }

// Numbers of tiles, and how much of each side they cover.
Range tiles_over(Range covered, int64_t tile) {
  return covered.empty() ? Range{0, 0} : Range{covered.begin / tile, divided_up(covered.end, tile)};
}
Range covered_by(Range tiles, int64_t tile, int64_t length) {
  return {tiles.begin * tile, std::min(tiles.end * tile, length)};
}

struct Pairs {
  double visited = 0, visible = 0;  // per head
};

// Calls use(queries, keys visible to any of them) for every tile of queries of one head. Tensors are dense, so that all
// heads are alike.
template <class Use>
void for_query_tiles(const Problem& p, const Sequence& s, int64_t tile_q, Use use) {
  for (int64_t first = 0; first < s.len_q; first += tile_q) {
    const Range queries{first, std::min(first + tile_q, s.len_q)};
    use(queries, keys_of_queries(p, s, queries));
  }
}

Pairs pairs_of(const Problem& p, const Sequence& s, int64_t tile_q, int64_t tile_k) {
  Pairs pairs;
  for_query_tiles(p, s, tile_q, [&](Range queries, Range seen) {
    pairs.visited += real(queries.size()) * real(covered_by(tiles_over(seen, tile_k), tile_k, s.len_k).size());
  });
  for (int64_t i = 0; i < s.len_q; ++i) pairs.visible += real(keys_of_query(p, s, i).size());
  return pairs;
}

void count_operations(const Problem& p, double of_pair, Traffic& t) {
  const Sequence s = sequence_of(p, 0);
  const double heads = real(p.batch * p.heads_q);
  const Pairs pairs = pairs_of(p, s, t.tiles.tile_q, t.tiles.tile_k);
  t.dense_flops = heads * of_pair * real(s.len_q) * real(s.len_k);
  t.visited_flops = heads * of_pair * pairs.visited;
  t.visible_flops = heads * of_pair * pairs.visible;
}

// Bytes of a row of queries or keys, of a row of values, and of the softmax state of a row.
struct Rows {
  double qk, v, state;
  double len_q, len_k;
  explicit Rows(const Problem& p)
      : qk(real(p.dim_qk) * bytes_of(p.dtype)),
        v(real(p.dim_v) * bytes_of(p.dtype)),
        state(bytes_of(state_type(p.dtype))),
        len_q(real(p.len_q)),
        len_k(real(p.len_k)) {}
};

// The outer loops of the paper: tiles of keys of ceil(M / 4 d), where M numbers fit into shared memory.
double paper_passes(const Problem& p, const cuda::Arch& arch) {
  const int64_t numbers = arch.shared_per_block / size_of(p.dtype);
  return real(divided_up(p.len_k, std::max<int64_t>(1, divided_up(numbers, 4 * std::max(p.dim_qk, p.dim_v)))));
}

}  // namespace

TileStats walked_tiles(const Problem& p, int64_t tile_q, int64_t tile_k) {
  TileStats tiles{tile_q, tile_k, 0, 0, 0};
  const Sequence s = sequence_of(p, 0);
  const int64_t of_row = divided_up(s.len_k, tile_k);
  for_query_tiles(p, s, tile_q, [&](Range queries, Range seen) {
    const Range visited = tiles_over(seen, tile_k), all = keys_of_all_queries(p, s, queries);
    // A short last tile that is entirely visible counts as full.
    const Range full{std::max(visited.begin, divided_up(std::max<int64_t>(0, all.begin), tile_k)),
                     std::min(visited.end, all.end >= s.len_k ? of_row : std::max<int64_t>(0, all.end) / tile_k)};
    tiles.visited += visited.size();
    tiles.masked += visited.size() - full.size();
    tiles.skipped += of_row - visited.size();
  });
  for (int64_t* count : {&tiles.visited, &tiles.masked, &tiles.skipped}) *count *= p.batch * p.heads_q;
  return tiles;
}

Traffic traffic_of(const ForwardProblem& p, const cuda::Arch& arch, cuda::KernelPreference kernels) {
  // Plans without split keys, because the traffic of partial results is not modelled.
  const cuda::ForwardPlan plan = cuda::plan_forward(p, arch, kernels, nullptr, {.has_workspace = false});
  const bool copies_boxes = plan.launch.kernel.type->takes_tensor_maps;
  const Sequence s = sequence_of(p, 0);
  const Rows row(p);
  const double heads_q = real(p.batch * p.heads_q), heads_k = real(p.batch * p.heads_k);
  const double row_o = real(p.dim_v) * bytes_of(p.o.dtype), row_lse = p.lse ? bytes_of(p.lse.dtype) : 0;

  Traffic t{};
  t.tiles = walked_tiles(p, plan.tile_q, plan.tile_k);
  count_operations(p, 2 * real(p.dim_qk + p.dim_v), t);
  // Scores and probabilities are both written and read.
  t.naive = heads_q * (4 * row.len_q * row.len_k * bytes_of(p.dtype) + row.len_q * (row.qk + row_o) +
                       row.len_k * (row.qk + row.v));
  // For each tile of keys, Q, O, sums and maxima are read, and O, sums and maxima are written.
  t.paper = heads_q *
            (row.len_k * (row.qk + row.v) + paper_passes(p, arch) * row.len_q * (row.qk + 2 * row_o + 4 * row.state));
  t.least = heads_q * row.len_q * (row.qk + row_o + row_lse) + heads_k * row.len_k * (row.qk + row.v);

  for_query_tiles(p, s, plan.tile_q, [&](Range queries, Range seen) {
    // The portable kernel skips keys of a tile that no query sees; TMA copies whole boxes.
    const Range keys = copies_boxes ? covered_by(tiles_over(seen, plan.tile_k), plan.tile_k, s.len_k) : seen;
    t.walk.read += heads_q * (real(queries.size()) * row.qk + real(keys.size()) * (row.qk + row.v));
    t.walk.written += heads_q * real(queries.size()) * (row_o + row_lse);
  });
  return t;
}

namespace {

// Three kernels: the first prepares rows of queries, the second loops over query tiles for each key tile, the third
// converts sums of dQ into dQ. Or dQ has its own kernel, which loops over key tiles for each query tile. Or the second
// stores dQ, because one key tile has all keys.
class BackwardWalk {
 public:
  BackwardWalk(const BackwardProblem& p, const cuda::BackwardPlan& plan)
      : p_(p),
        plan_(plan),
        copies_boxes_(plan.main.kernel.type->takes_tensor_maps),
        alternates_(!copies_boxes_ && plan.main.kernel.as<BackwardConfig>().stages == 0),
        c_(plan.prepare.kernel.as<BackwardConfig>()),
        row_(p),
        s_(sequence_of(p, 0)),
        keeps_dq_(plan.workspace.kept_dq != 0),
        sums_bytes_(real(plan.workspace.dq_rows) * real(c_.dim_qk) * row_.state) {}

  Moved moved() {
    for_query_tiles(p_, s_, c_.tile_q, [&](Range queries, Range) { prepare_and_finish(real(queries.size())); });
    if (plan_.main.grid_x != 0)
      for (int64_t first = 0; first < s_.len_k; first += plan_.tile_k)
        visit_keys({first, std::min(first + plan_.tile_k, s_.len_k)});
    if (plan_.dq.grid_x != 0)
      for_query_tiles(p_, s_, plan_.dq_tile_q, [&](Range queries, Range seen) { walk_keys(queries, seen); });
    return moved_;
  }

 private:
  void prepare_and_finish(double queries) {
    const double heads = real(p_.batch * p_.heads_q);
    moved_.read += heads * queries * (2 * row_.v + row_.state);  // O, dO, LSE
    moved_.written += heads * (real(row_stats_bytes(c_)) + (keeps_dq_ ? 0 : sums_bytes_));
    if (plan_.finish.grid_x == 0) {  // the main kernel stores dQ, or the kernel for dQ does: see walk_keys
      if (p_.dq && plan_.dq.grid_x == 0) moved_.written += heads * queries * row_.qk;
      return;
    }
    constexpr double kBlock = 16;  // rows whose sums are adjacent
    const double rows = std::min(real(plan_.workspace.dq_rows), kBlock * real(divided_up(int64_t(queries), 16)));
    moved_.read += heads * rows * real(c_.dim_qk) * row_.state;
    moved_.written += heads * queries * row_.qk;
  }

  void visit_keys(Range keys) {
    const double heads = real(p_.batch * p_.heads_k), group = real(p_.group());
    moved_.written += heads * real(keys.size()) * ((p_.dk ? row_.qk : 0) + (p_.dv ? row_.v : 0));
    const Range tiles = tiles_over(queries_of_keys(p_, s_, keys), c_.tile_q);
    if (tiles.empty()) return;
    const Range seen = keys_of_queries(p_, s_, {0, s_.len_q});
    const Range copied{std::max(keys.begin, seen.begin), std::min(keys.end, seen.end)};
    const double rows_k = real((copies_boxes_ ? keys : copied).size());
    const double rows_q = real(covered_by(tiles, c_.tile_q, s_.len_q).size());
    const double steps = group * real(tiles.size());
    // If tensors share a buffer, every step loads K twice and V once, and Q twice.
    moved_.read += heads * rows_k * (alternates_ ? (1 + 2 * steps) * row_.qk + steps * row_.v : row_.qk + row_.v);
    moved_.read +=
        heads * (group * rows_q * ((alternates_ ? 2 : 1) * row_.qk + row_.v) + steps * real(row_stats_bytes(c_)));
    if (keeps_dq_) {  // every key tile but the last one of a query tile writes the sums, and every one but the first reads
      const Range later{keys.end, keys.end + plan_.tile_k};
      const Range left = keys.end < s_.len_k ? tiles_over(queries_of_keys(p_, s_, later), c_.tile_q) : Range{};
      const double again = group * real(std::max<int64_t>(0, tiles.end - std::max(tiles.begin, left.begin)));
      if (!left.empty()) moved_.read += heads * again * sums_bytes_, moved_.written += heads * again * sums_bytes_;
    } else {
      moved_.added += heads * steps * sums_bytes_;
    }
  }

  void walk_keys(Range queries, Range seen) {
    const double heads = real(p_.batch * p_.heads_q);
    const int64_t tile_k = plan_.dq_tile_k;
    const double keys = real(covered_by(tiles_over(seen, tile_k), tile_k, s_.len_k).size());
    const double stats = real(divided_up(queries.size(), c_.tile_q)) * real(row_stats_bytes(c_));
    moved_.written += heads * real(queries.size()) * row_.qk;
    if (!seen.empty()) moved_.read += heads * ((real(queries.size()) + keys) * (row_.qk + row_.v) + stats);
  }

  const BackwardProblem& p_;
  const cuda::BackwardPlan& plan_;
  const bool copies_boxes_;  // TMA copies whole boxes of keys
  const bool alternates_;    // K and V, and Q and dO, share one buffer each in shared memory
  const BackwardConfig c_;   // the fields that all kernels share: type, head sizes, tile_q
  const Rows row_;
  const Sequence s_;
  const bool keeps_dq_;      // a CTA has all key tiles of a head
  const double sums_bytes_;  // size of a tile of dQ sums
  Moved moved_;
};

}  // namespace

Traffic traffic_of(const BackwardProblem& p, const cuda::Arch& arch, cuda::KernelPreference kernels) {
  const cuda::BackwardPlan plan = cuda::plan_backward(p, arch, cuda::Reproducible::no, kernels);
  const Rows row(p);
  const double heads_q = real(p.batch * p.heads_q), heads_k = real(p.batch * p.heads_k);

  Traffic t{};
  t.tiles = walked_tiles(p, plan.tile_q, plan.tile_k);
  count_operations(p, 2 * real(3 * p.dim_qk + 2 * p.dim_v), t);
  // P read twice (dV, dS), dP written and read, dS written and read twice (dQ, dK); rows as these products need them.
  t.naive = heads_q * (7 * row.len_q * row.len_k * bytes_of(p.dtype) + 2 * row.len_q * (row.qk + row.v) +
                       2 * row.len_k * (row.qk + row.v));
  // For each tile of keys, Q, O, dO, dQ, sums and maxima are read, and dQ is written.
  t.paper = heads_q * (2 * row.len_k * (row.qk + row.v) +
                       paper_passes(p, arch) * row.len_q * (3 * row.qk + 2 * row.v + 2 * row.state));
  t.least = heads_q * row.len_q * (2 * row.qk + 2 * row.v + row.state) + 2 * heads_k * row.len_k * (row.qk + row.v);
  t.walk = BackwardWalk(p, plan).moved();
  return t;
}

}  // namespace cuflash::cli
