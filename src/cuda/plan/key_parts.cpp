#include "cuda/plan/key_parts.h"

#include <algorithm>
#include <cmath>

#include "cuda/plan/backward_common.h"

namespace cuflash::cuda {
namespace {

// Costs in units of the time of one query tile: starting a task and storing its sums; starting a task and adding its
// sums to those in memory; clearing and converting the sums of a key tile.
constexpr double kStores = 2.2, kAdds = 3, kConverts = 4.4;
// Tasks that visit several heads, each for a different time, read them at different times, and tasks with other parts of
// the queries read other queries. Query tiles take this much longer for every kCachedBytes, beyond the first, that the
// tasks of all SMs have in use: measured for 2, 4 and 8 heads of 128 columns.
constexpr double kMisses = 0.05, kCachedBytes = 17 << 20;
// A division must gain this much to be worth its memory. It gains nothing if there are many tasks anyway: 16 per SM.
constexpr double kGain = 0.97, kManyTiles = 16 * kSms;
constexpr int kMaxHeadParts = 128, kMaxQueryParts = 8;

struct Work {
  double key_tiles;      // key tiles of all heads
  double longest, mean;  // query tiles that a key tile visits, per query head
  bool even;             // whether nearly all key tiles visit the same number
  bool balanced;  // second tasks are paired with first ones or claimed late, if tasks are few and none is divided
  bool claims_late;
  double bytes;      // bytes of the queries in use at a time, if every task visits one head
  double all_bytes;  // bytes of all queries
  double group;
};

Work work_of(const BackwardProblem& p, const MainKernel& kernel) {
  const BackwardConfig& c = kernel.config;
  const auto tiles = [](double length, int tile) { return std::ceil(length / tile); };
  const double len_q = static_cast<double>(p.len_q), len_k = static_cast<double>(p.len_k);
  const double heads = static_cast<double>(p.heads_k), batch = static_cast<double>(p.batch);
  Work w{.key_tiles = batch * heads * tiles(len_k, c.tile_k),
         .longest = len_q,
         .mean = len_q,
         .even = !p.packed(),
         .balanced = false,
         .claims_late = kernel.claims_late,
         .bytes = 0,
         .all_bytes = 0,
         .group = static_cast<double>(p.group())};
  if (p.window_right != kUnbounded && p.window_left == kUnbounded) {
    w.longest = std::min(len_q, len_k);
    w.mean = w.longest * (1 - w.longest / (2 * std::max(1.0, len_k)));
    w.even = false, w.balanced = !p.packed();
  } else if (p.window_left != kUnbounded && p.window_right != kUnbounded) {
    const double window = static_cast<double>(p.window_left) + static_cast<double>(p.window_right) + c.tile_k;
    w.longest = w.mean = std::min(len_q, window);
  }
  if (p.packed()) {
    w.key_tiles = heads * tiles(static_cast<double>(p.total_k), c.tile_k);
    // The longest sequence is a bound, and the others are shorter.
    w.mean *= std::min(1.0, static_cast<double>(p.total_q) / batch / std::max(1.0, len_q));
  }
  w.longest = tiles(w.longest, c.tile_q), w.mean = std::max(1.0, w.mean / c.tile_q);
  const double row = static_cast<double>(p.dim_qk + p.dim_v) * size_of(c.element) +
                     (kernel.sums_dq ? static_cast<double>(p.dim_qk) * sizeof(float) : 0);
  w.bytes = kSms * c.tile_k * row;
  w.all_bytes = static_cast<double>(p.heads_q) * (p.packed() ? static_cast<double>(p.total_q) : batch * len_q) * row;
  return w;
}

// Time of all tasks, in the unit above. Tasks of unequal length start in the order of their length. At the end an SM
// waits for a quarter of the longest task on average, or less if tasks are paired or claimed late: simulated for causal
// masks, and measured for 4 and 8 heads that share keys.
double time_of(const Work& w, int heads, int queries) {
  const double parts = heads * queries, tasks = w.key_tiles * parts, ends = parts > 1 ? kAdds : kStores;
  const double members = std::ceil(w.group / heads);
  const double longest = std::ceil(w.longest / queries) * members + ends;
  const double converts = parts > 1 ? kConverts * w.key_tiles / kSms : 0;
  if (w.even) return std::ceil(tasks / kSms) * longest + converts;
  const double in_use = std::min(members * queries * w.bytes, w.all_bytes);
  const double misses = 1 + kMisses * std::max(0.0, in_use / kCachedBytes - 1);
  const double all = (w.key_tiles * w.mean * w.group * misses + tasks * ends) / kSms;
  const bool is_shared = parts > 1 ? w.claims_late : w.balanced;
  const double waits = !is_shared || tasks > kFewTasks ? 0.25 : tasks > 2 * kSms ? 0.15 : 0.05;
  return std::max(longest, all + waits * longest) + converts;
}

}  // namespace

double max_sum_bytes(const BackwardProblem& p) {
  constexpr double kLittle = 16 << 20;
  constexpr int64_t kLargestTile = 192;
  const double rows =
      p.packed() ? static_cast<double>(p.total_q)
                 : static_cast<double>(p.batch) * static_cast<double>(tiles_in(p.len_q, kLargestTile) * kLargestTile);
  return std::max(kLittle, 2 * sizeof(float) * rows * static_cast<double>(p.heads_q) * static_cast<double>(p.dim_qk));
}

KeyParts key_parts(const BackwardProblem& p, const MainKernel& kernel, Reproducible reproducible) {
  if (!(p.dk || p.dv)) return {};
  const BackwardConfig& c = kernel.config;
  const Work work = work_of(p, kernel);
  const double sum_bytes = work.key_tiles * c.tile_k * (c.dim_qk + c.dim_v) * sizeof(float), most = max_sum_bytes(p);
  KeyParts best{.own_sums = reproducible == Reproducible::yes};
  if (work.key_tiles >= kManyTiles) return {};
  double least = kGain * time_of(work, 1, 1);
  const auto consider = [&](int heads, int queries) {
    if (sum_bytes * (best.own_sums ? heads * queries : 1) > most) return;
    const double time = time_of(work, heads, queries);
    if (time < least) least = time, best.heads = heads, best.queries = queries;
  };
  const int group = static_cast<int>(std::min<int64_t>(p.group(), kMaxHeadParts));
  for (int heads = 2; heads <= group; ++heads) consider(heads, 1);
  for (int queries = 2; queries <= kMaxQueryParts; ++queries) consider(group, queries);
  return best.count() > 1 ? best : KeyParts{};
}

}  // namespace cuflash::cuda
