#include "cuda/families/kv_common.h"

#include <algorithm>

#include "error.h"
#include "kv/geometry.h"
#include "kv/ticket.h"

namespace cuflash::cuda {
namespace {

// Splits long sequences but not short ones: even if there are enough tiles, one long sequence among short ones would
// keep the device waiting. CTAs of unused splits exit at once, but must be launched.
void split_long_sequences(KvPlan& plan, int64_t key_tiles, int64_t tiles, int64_t slots) {
  constexpr int64_t kMaxCtas = 32;  // CTAs per slot
  if (plan.row_tiles != 1) return;  // many queries: so many tiles that there would be too many sums to keep
  const int64_t cuts = std::min({kMaxCuts, key_tiles / kLongTiles, kMaxCtas * slots / tiles});
  if (cuts <= plan.splits) return;
  plan.splits = cuts;
  plan.reason = "long sequences are cut, so that none of them keeps the device waiting";
}

// Adds short splits for the end of the call. When no CTA is left to start, the running CTAs finish one after the other
// over the time that one of them takes, and memory bandwidth goes unused. Short splits fill that time, on average half
// of it in every slot.
void add_short_splits(KvPlan& plan, int64_t key_tiles, int64_t tiles, int64_t slots) {
  constexpr int64_t kMaxShort = 4;
  if (plan.row_tiles != 1) return;
  // The overhead of short splits exceeds their gain if all long ones start at once, or if these are not long.
  const int64_t long_splits = std::max(plan.base_splits, std::min(plan.splits, key_tiles / kLongTiles));
  if (tiles * long_splits <= slots || key_tiles < 2 * kLongTiles) return;
  const int64_t idle = slots * (key_tiles / long_splits) / 2, tiles_at_once = tiles * kShortTiles;
  plan.short_splits = std::min(
      {kMaxShort, key_tiles / (4 * kShortTiles), (idle + tiles_at_once - 1) / tiles_at_once, kMaxSplits - plan.splits});
  plan.splits += plan.short_splits;
}

// Chooses the number of splits. A fixed number is used as it is. Otherwise there are as many splits as fill the device
// once, or a few times if that leaves less of it idle. The lengths are not known here, so the capacity of the cache is
// divided evenly. tuned: 0, or the number of splits that was fastest.
void choose_splits(KvPlan& plan, const CacheProblem& p, const KvConfig& c, int num_sms, int64_t tuned,
                   ShortSplits short_splits) {
  const int64_t key_tiles = std::max<int64_t>(1, max_key_tiles(p, c.tile_q, c.tile_k));
  if (p.num_splits != 0) {
    plan.splits = plan.base_splits = std::min(p.num_splits, key_tiles), plan.min_tiles_per_split = 1;
    plan.reason = "as many splits as requested, with tiles that depend only on the sequence";
    if (plan.splits > kMaxSplits)
      refuse(join("num_splits: got ", p.num_splits, ", but the CUDA kernels cut a sequence into at most ", kMaxSplits,
                  " ranges"));
    return;
  }
  constexpr int64_t kMinTilesPerSplit = 2, kMaxWaves = 4;
  const int64_t tiles = of_all_heads(p, plan.row_tiles);
  // A few tiles would have many splits to add up at the end, so one CTA per SM is enough for them.
  const bool few = 2 * tiles <= num_sms;
  const int64_t all_slots = int64_t{num_sms} * c.ctas_per_sm, slots = few ? num_sms : all_slots;
  const int64_t most = std::clamp<int64_t>(key_tiles / kMinTilesPerSplit, 1, kMaxSplits);
  plan.min_tiles_per_split = kMinTilesPerSplit;
  plan.reason = "one split: there are tiles of rows enough to fill the device";
  if (tiles == 0 || p.len_q == 0) return;
  double best = 0;
  if (tuned != 0) plan.splits = std::min(tuned, most);
  for (int64_t waves = (tiles + slots - 1) / slots; tuned == 0 && waves <= kMaxWaves + 1; ++waves) {
    const int64_t splits = std::clamp<int64_t>(waves * slots / tiles, 1, most);
    const double busy = static_cast<double>(tiles * splits) / static_cast<double>(waves * slots);
    if (busy <= 1.1 * best) continue;  // more waves mean more work at the ends of splits
    best = busy, plan.splits = splits;
  }
  if (plan.splits > 1) plan.reason = "as many splits as fill the device with parts of equal length";
  plan.base_splits = plan.splits;
  if (c.ctas_per_sm == 1 && plan.splits == 1 && fills_once(tiles, key_tiles, num_sms)) return;
  split_long_sequences(plan, key_tiles, tiles, slots);
  if (short_splits == ShortSplits::yes) add_short_splits(plan, key_tiles, tiles, all_slots);
}

KvWorkspace workspace_of(const KvPlan& plan, const KvConfig& c, int64_t tiles) {
  KvWorkspace w;
  if (plan.splits <= 1 || plan.launch.grid_x == 0) return w;
  const Checked rows = Checked(tiles) * plan.splits * plan.state_rows;
  const int64_t real = sum_size(c.element);
  const Checked columns = rows * c.dim_v;
  constexpr int64_t kUnit = 256;
  const Checked states = round_up(Checked(tiles) * int64_t{sizeof(uint64)}, kUnit);
  // A flagged pair is 16 bytes for two numbers: kernels/kv/exchange.h.
  const Checked exchanges = rows * (c.dim_v / kExchangeColumns) * 16;
  const Checked sums = states + round_up(c.l2_exchange ? exchanges : rows * 2 * real, kUnit);
  w.size = workspace_bytes(sums + columns * (c.l2_exchange ? 8 : real));  // all parts are within this size
  w.states = workspace_bytes(states), w.sums = workspace_bytes(sums);
  return w;
}

}  // namespace

RowsExtent cached_extent(const Problem& p, int64_t dim) {
  return {dim, p.cache.page_size != 0 ? p.cache.page_size : p.len_k, p.heads_k, p.cache.entries};
}

int64_t column_of_values(const CacheProblem& p) {
  return (static_cast<const std::byte*>(p.v.data) - static_cast<const std::byte*>(p.k.data)) / size_of(p.dtype);
}

int kv_options(const CacheProblem& p, int copy) {
  int options = (p.softcap > 0 ? kSoftcap : 0) | (p.slopes ? kAlibi : 0);
  if (copy == kCopyElements) options = kSoftcap | kAlibi;  // one kernel serves all options, because it need not be fast
  return options == 0 && must_scale_first(p) ? static_cast<int>(kScaleFirst) : options;
}

int64_t of_all_heads(const CacheProblem& p, int64_t count) {
  constexpr int64_t kPlenty = int64_t{1} << 50;
  return (Checked(p.batch) * p.heads_k * count).at_most(kPlenty);
}

int64_t row_tiles(const CacheProblem& p, int tile_q) {
  const int64_t rows = std::max<int64_t>(1, p.len_q * p.group());
  return of_all_heads(p, (rows + tile_q - 1) / tile_q);
}

int64_t max_key_tiles(const CacheProblem& p, int tile_q, int tile_k) {
  const int64_t queries = std::min(p.len_q, tile_q / p.group() + 2);
  const int64_t seen = std::min(p.len_k, p.window_left + p.window_right + queries);
  const int64_t whole = (seen + tile_k - 1) / tile_k;
  return seen < p.len_k ? whole + 1 : whole;  // a window need not begin with a tile
}

bool fills_once(int64_t tiles, int64_t key_tiles, int64_t sms) {
  return tiles <= sms && 10 * tiles >= 9 * sms && key_tiles <= 2 * kLongTiles;
}

int stages_that_fit(KvConfig c, const Arch& arch, int most) {
  constexpr int kReserved = 1024;  // bytes that CUDA reserves in every CTA
  for (c.stages = most; c.stages >= 2; --c.stages)
    if (shared_bytes(c) <= arch.shared_per_block && c.ctas_per_sm * (shared_bytes(c) + kReserved) <= arch.shared_per_sm)
      return c.stages;
  return 0;
}

void refuse_tiles(const CacheProblem& p, const Arch& arch) {
  refuse(join("no kernel over a cache of ", name_of(p.dtype), " with head sizes ", p.dim_qk, " and ", p.dim_v,
              " fits the shared memory of ", target_of(arch), "; the CPU backend computes any size"));
}

bool has_legal_sizes(const KvConfig& c) {
  return is_tile(c.tile_q) && is_tile(c.tile_k) && are_warps(c.row_warps) && are_warps(c.key_warps) &&
         are_warps(c.column_warps) && c.stages >= 2 && c.stages <= 8 && has_warps(num_threads(c), c.ctas_per_sm);
}

Limits mma_limits(const KvConfig& c, const Arch& arch) {
  const int keys = c.tile_k / c.key_warps, columns = c.dim_v / c.column_warps;
  const bool shape = c.tile_q == 16 * c.row_warps && c.tile_k % (16 * c.key_warps) == 0 &&
                     c.dim_v % (16 * c.column_warps) == 0 && (!c.v_in_k || c.dim_v <= c.dim_qk) &&
                     (c.copy == kCopyTma ? c.tile_k <= 128 : c.tile_k <= consumer_threads(c));
  const int registers = sum_registers(c.element, 16, columns) + sum_registers(c.element, 16, keys) + kOtherRegisters;
  return limits_with(shape, shared_bytes(c), c.ctas_per_sm, arch, registers,
                     registers_of(num_threads(c), c.ctas_per_sm));
}

void plan_splits(KvPlan& plan, const CacheProblem& p, const KvConfig& c, const PlanTarget& target,
                 ShortSplits short_splits) {
  const int64_t rows = p.len_q * p.group();
  plan.tile_q = c.tile_q, plan.tile_k = c.tile_k;
  plan.first_wave_ctas = int64_t{target.num_sms} * c.ctas_per_sm;
  plan.row_tiles = std::max<int64_t>(1, (rows + c.tile_q - 1) / c.tile_q);
  plan.state_rows = std::clamp<int64_t>(rows, 1, c.tile_q);
  choose_splits(plan, p, c, target.num_sms, plan.tuned ? target.choice->splits : 0, short_splits);
  if (plan.tuned) plan.reason = kTunedReason;
  plan.all_resident = of_all_heads(p, plan.row_tiles) * plan.splits <= plan.first_wave_ctas;
}

void plan_launch(KvPlan& plan, const CacheProblem& p, const KernelType& type, const KvConfig& c, const Arch& arch) {
  // Sequences without queries may still have rows to append.
  const bool works = p.len_q > 0 || p.cache.len_new > 0;
  plan.launch =
      launch_of(key_of(type, arch, c), works ? Checked(p.batch) * p.heads_k * plan.row_tiles * plan.splits : 0,
                num_threads(c), shared_bytes(c));
  plan.workspace = workspace_of(plan, c, of_all_heads(p, plan.row_tiles));
}

std::vector<Alternatives> kv_candidates(const KernelType& type, const CacheProblem& p, const KvPlan& plan,
                                        const Arch& arch) {
  const int64_t rows = p.group() * p.len_q;
  auto c = plan.launch.kernel.as<KvConfig>();
  std::vector<Alternatives> all;
  for (const int tile_q : {16, 32, 64, 128, 256})
    for (const int tile_k : {16, 32, 64, 128})
      for (const int key_warps : {1, 2, 4, 8})
        for (const int column_warps : {1, 2, 4})
          for (const int ctas : {1, 2, 3}) {
            if (tile_q > 16 && rows <= tile_q / 2) continue;
            c.tile_q = tile_q, c.row_warps = std::min(tile_q / 16, 8), c.tile_k = tile_k;
            c.key_warps = key_warps, c.column_warps = column_warps, c.ctas_per_sm = ctas;
            if (tile_q > kWarpgroupRows && !by_warpgroups(c)) continue;  // untested
            const int warps = c.row_warps * key_warps * column_warps;
            if (warps < 4 || warps > 8) continue;  // fewer keep too few copies in flight
            Alternatives& alternatives = all.emplace_back();
            // The only CTA of an SM has room for more stages.
            for (const int stages : {8, 6, 4, 3, 2})
              if (stages <= 4 || (ctas == 1 && c.copy == kCopyTma))
                c.stages = stages, alternatives.push_back(key_of(type, arch, c));
          }
  return all;
}

std::string kv_config_line(const KvConfig& c, const char* copies) {
  return join("config     tiles of ", c.tile_q, " rows (queries times heads of a group) x ", c.tile_k,
              " keys, head sizes up to ", c.dim_qk, " and ", c.dim_v,
              c.v_in_k ? ", values are columns of keys, " : ", ", c.stages, " stages, ", c.ctas_per_sm,
              " CTAs per SM, rows copied ", copies, ", ", c.fast_decode ? "fast decode, " : "",
              c.l2_exchange ? "splits exchange their sums, " : "", options_text(c.options), "\n");
}

}  // namespace cuflash::cuda
