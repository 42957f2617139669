#include "cpu/plan/plan.h"

#include <algorithm>

#include "cpu/isa/decode_tables.h"
#include "cpu/isa/kernels.h"
#include "cpu/plan/heads_as_rows.h"
#include "cpu/threads/threads.h"
#include "error.h"

namespace cuflash::cpu {

// Dropout groups span 16 keys, so key tiles start at multiples of 16 and of the step of the products.
constexpr int64_t kKeyUnit = 16;

static int64_t tile_of(int64_t length, int64_t unit, int64_t most) {
  return std::min(round_up(std::max<int64_t>(length, 1), unit), most);
}

// The tuned choice, if it is a legal one for the CPU, rounded up to whole panels and steps.
static TileShape largest_tile(const TileShape& built_in, int64_t lanes, int64_t unit, const tuned::Choice* choice) {
  constexpr int kMax = 4096;
  if (!choice || choice->family != "cpu" || choice->tile_q > kMax || choice->tile_k > kMax || choice->tile_q < lanes ||
      choice->tile_k < unit)
    return built_in;
  return {round_up(choice->tile_q, lanes), round_up(choice->tile_k, unit)};
}

// Large tiles of queries amortise the packing of K and V; wide heads leave less room for them in the caches. If they
// make too few tasks for the threads, they get smaller. Panels are independent of each other, so no result depends on
// that. Keys are cut as in a decode step, because a call over a cache may do both, and counts tiles of one kind.
TileShape forward_tile(const Problem& p, int64_t lanes, int64_t step, int64_t largest_q, int64_t threads,
                       const tuned::Choice* choice) {
  constexpr int64_t kSharedQ = 512;
  const int64_t unit = std::max(kKeyUnit, step);
  const int64_t max_q = threads == 1 ? largest_q : std::min(largest_q, kSharedQ);
  const bool wide = p.dim_qk + p.dim_v > 256;
  const TileShape most = largest_tile({wide ? max_q / 2 : max_q, kDecodeTile}, lanes, unit, choice);
  TileShape shape{tile_of(p.len_q, lanes, most.q), tile_of(p.len_k, unit, most.k)};
  if (threads == 1) return shape;
  const auto tasks = [&](int64_t q, int64_t enough) {
    return (Checked(p.batch) * p.heads_q * ((p.len_q + q - 1) / q)).at_most(enough);
  };
  // The time of a thread that gets the most tasks of equal size. Packing K and V takes as long as attending to them
  // with kPacking queries.
  constexpr int64_t kPacking = 32;
  const auto time = [&](int64_t q) { return (tasks(q, 16 * threads) + threads - 1) / threads * (q + kPacking); };
  const bool lengths_differ = p.packed() || p.used_q || p.used_k || p.cache;
  const bool equal_tasks = !lengths_differ && p.window_left >= p.len_k && p.window_right >= p.len_k;
  const int64_t enough = std::max<int64_t>(16, 4 * threads), smallest = 2 * lanes;
  while (shape.q > smallest && tasks(shape.q, enough) < enough) {
    const int64_t half = round_up(shape.q / 2, lanes);
    const bool too_few = tasks(shape.q, threads) < threads;
    if (equal_tasks ? time(half) >= time(shape.q) : shape.q <= 128 && !too_few) break;
    shape.q = half;
  }
  return shape;
}

// More keys amortise the packing of Q and dO better, but on a diagonal a larger part of a tile is computed in vain, and
// with few heads there are too few tasks.
TileShape backward_tile(const Problem& p, int64_t lanes, int64_t step, const tuned::Choice* choice) {
  const int64_t long_enough = p.heads_k >= 8 ? 512 : 1024;
  const int64_t max_keys = p.window_right >= p.len_k && p.len_k >= long_enough ? 256 : 128;
  const int64_t unit = std::max(kKeyUnit, step);
  const TileShape most = largest_tile({128, max_keys}, lanes, unit, choice);
  return {tile_of(p.len_q, lanes, most.q), tile_of(p.len_k, unit, most.k)};
}

// Half a panel: up to this many queries, the decode path is faster than a partly filled panel, for every type and
// length measured (docs/lab/cpu.md), if panels are filled head by head. If 16-bit panels have matrix instructions and
// decode has none, panels win earlier. Up to kAlwaysDecodeQueries a call does not need to request those instructions.
constexpr int64_t kAlwaysDecodeQueries = 4;

// Dropout divides the weights that it keeps by a probability, and f16 may be too small for the quotient.
bool panels_multiply_halves(const Problem& p) {
  return has_matrix_kernels(p.dtype) && (p.dtype != DType::f16 || p.dropout.p == 0);
}
static int64_t max_decode_queries(const Problem& p) {
  if (panels_multiply_halves(p) && !(p.dtype == DType::bf16 && decode_tables().bf16)) return kAlwaysDecodeQueries;
  return (p.dtype == DType::f64 ? kernels<double>().lanes : kernels<float>().lanes) / 2;
}
constexpr int64_t kMaxDecodeRows = 256;  // keeps the scores of a tile in L2

static bool takes_decode(const Problem& p, int64_t len_q) {
  if (p.group() * len_q > kMaxDecodeRows) return false;
  if (len_q <= kAlwaysDecodeQueries) return true;
  return len_q <= max_decode_queries(p) && (decode_multiplies_bf16(p) || !group_fills_panels(p));
}
bool takes_decode(const Problem& p) { return takes_decode(p, p.len_q); }
bool takes_decode(const Problem& p, const Sequence& s) { return takes_decode(p, p.cache ? s.len_q : p.len_q); }

bool decode_multiplies_bf16(const Problem& p) {
  return p.dtype == DType::bf16 && decode_tables().bf16 && std::max(p.dim_qk, p.dim_v) <= kMatrixDim;
}

static int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t kMinSplitKeys = kDecodeTile;  // below this, merging a split costs more than it saves

// The number of heads of a task. If the heads of a key, or the heads of a small page, are adjacent in memory, a task
// takes several of them to read memory in order, but not so many that their accumulators leave L1 or that too few tasks
// remain.
static int64_t heads_of_task(const Problem& p, int64_t rows) {
  constexpr int64_t kMaxBytes = 64 * 1024, kEnoughTasks = 16;
  const auto interleaved = [](const ConstRows& x) { return x.head_stride < x.row_stride; };
  const bool small_pages = p.cache.page_size && p.cache.page_size <= kDecodeTile;
  if (!interleaved(p.k) && !interleaved(p.v) && !small_pages) return 1;
  int64_t run = std::clamp<int64_t>(kMaxBytes / (std::max<int64_t>(rows, 1) * (p.dim_qk + p.dim_v) * 4), 1, p.heads_k);
  while (run > 1 && ceil_of(p.heads_k, run) * ceil_of(p.len_k, kMinSplitKeys) < kEnoughTasks) run = ceil_of(run, 2);
  return run;
}

// The number of splits: enough tasks for a machine with many cores, even from one sequence; half as many if the splits
// would be shorter than a block of one row.
static int64_t splits_of(int64_t keys, int64_t runs) {
  constexpr int64_t kEnoughTasks = 32;
  const int64_t most = std::max<int64_t>(keys / kMinSplitKeys, 1);
  const auto at_most = [&](int64_t tasks) { return std::min(ceil_of(tasks, runs), most); };
  return std::clamp(ceil_of(keys, kMaxDecodeKeys), at_most(kEnoughTasks / 2), at_most(kEnoughTasks));
}

DecodePlan decode_plan(const Problem& p, int64_t splits) {
  DecodePlan plan{};
  const int64_t queries = p.len_q <= kAlwaysDecodeQueries ? p.len_q : std::min(p.len_q, max_decode_queries(p));
  plan.rows = p.group() * std::min(queries, kMaxDecodeRows / p.group());
  plan.heads_per_task = heads_of_task(p, plan.rows);
  plan.head_blocks = ceil_of(p.heads_k, plan.heads_per_task);
  int64_t keys = p.len_k;  // from the first to the last tile that a query sees
  if (p.window_left != kUnbounded) keys = std::min(keys, p.window_left + p.window_right + p.len_q + kDecodeTile);
  plan.requested_splits = splits;
  // A split is at least one tile, so no more than this many have keys.
  plan.splits =
      splits ? std::min(splits, std::max<int64_t>(ceil_of(keys, kDecodeTile), 1)) : splits_of(keys, plan.head_blocks);
  return plan;
}

int64_t split_keys(const DecodePlan& plan, int64_t keys) {
  const int64_t splits = plan.requested_splits ? plan.requested_splits : splits_of(keys, plan.head_blocks);
  return round_up(ceil_of(std::max<int64_t>(keys, 1), splits), kDecodeTile);
}

int64_t TileIndex::rows_of(const Problem& problem, Side side, int64_t b) {
  if (!problem.packed()) return side == Side::query ? problem.len_q : problem.len_k;
  const Sequence sequence = sequence_of(problem, b);
  return side == Side::query ? sequence.len_q : sequence.len_k;
}

TileIndex::TileIndex(const Problem& problem, Side side, int64_t heads, int64_t tile, int64_t* before)
    : problem_(problem), side_(side), batch_(problem.batch), heads_(heads), tile_(tile), before_(before) {
  before_[0] = 0;
  for (int64_t b = 0; b < batch_; ++b) before_[b + 1] = before_[b] + (rows_of(problem, side, b) + tile - 1) / tile;
}

TileIndex::TileCoord TileIndex::coord(int64_t task) const {
  const int64_t b = std::upper_bound(before_, before_ + batch_ + 1, task / heads_) - before_ - 1;
  const int64_t within = task - before_[b] * heads_;
  // Longest first: the last queries of a causal head see the most keys.
  const int64_t tile = tiles(b) - 1 - within % tiles(b);
  const int64_t begin = tile * tile_;
  return {b, within / tiles(b), {begin, std::min(begin + tile_, rows_of(problem_, side_, b))}};
}

Checked TileIndex::count(const Problem& problem, Side side, int64_t heads, int64_t tile) {
  const auto tiles_of = [&](int64_t b) { return ceil_of(rows_of(problem, side, b), tile); };
  if (!problem.packed()) return Checked(problem.batch) * heads * tiles_of(0);
  int64_t tiles = 0;  // at most one per row plus one per sequence
  for (int64_t b = 0; b < problem.batch; ++b) tiles += tiles_of(b);
  return Checked(tiles) * heads;
}

std::string describe_forward(const Problem& p, int64_t splits) {
  if (!takes_decode(p)) return "online softmax, panels of queries over tiles of keys";
  const DecodePlan plan = decode_plan(p, splits);
  return join("decode (at most ", max_decode_queries(p), " queries), ", plan.rows,
              " rows share each K and V, which are read once and in place, ", plan.heads_per_task, " of ", p.heads_k,
              " heads at a time, in up to ", plan.splits, " splits of the keys");
}

int64_t worker_count(const Problem& p, const Execution& execution, const Checked& tasks) {
  // Waking a sleeping thread costs microseconds: about this many multiply-adds of one core.
  constexpr double kWorthWaking = 2e5;
  const double work = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.len_q) *
                      static_cast<double>(p.len_k) * static_cast<double>(p.dim_qk + p.dim_v);
  const int64_t useful = static_cast<int64_t>(std::min(work / kWorthWaking, 1e6)) + 1;
  return std::max<int64_t>(1, tasks.at_most(std::min<int64_t>(num_threads(execution), useful)));
}

}  // namespace cuflash::cpu
