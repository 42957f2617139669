#include "cuda/families/plan_kv.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/plan_common.h"
#include "cuda/families/tuned_config.h"
#include "error.h"
#include "kv/geometry.h"
#include "kv/ticket.h"

namespace cuflash::cuda {
namespace {

constexpr int kDims[] = {32, 64, 96, 128, 192, 256, 512, 576};
// Positions inside a sequence, and rows of all heads of a group, are ints on the device; a tile may reach beyond the end.
constexpr int64_t kLongest = (int64_t{1} << 31) - 1024;
constexpr int kMostStages = 4, kMostLoneStages = 8;

[[noreturn]] void refuse(const std::string& sentence) { throw FlashAttentionError(CUFLASH_UNSUPPORTED, sentence); }

void require_dim(const char* name, int64_t dim) {
  if (dim > kDims[std::size(kDims) - 1])
    refuse(join(name, ": head size ", dim, " is above ", kDims[std::size(kDims) - 1],
                ", the largest of the CUDA kernels over a cache; the CPU backend computes any size"));
}

void require_supported(const CacheProblem& p) {
  require_dim("q", p.dim_qk);
  require_dim("v", p.dim_v);
  if (p.len_q > kLongest / p.group())
    refuse(join("q: ", p.len_q, " queries of ", p.group(), " heads that share keys are more than ", kLongest,
                " rows, the most of the CUDA kernels; attend in parts"));
  if (p.len_k > kLongest)
    refuse(join(p.cache.page_size ? "block_table" : "k", ": has room for ", p.len_k, " tokens, more than ", kLongest,
                ", the most of the CUDA kernels"));
}

int padded(int64_t dim) {
  return *std::find_if(std::begin(kDims), std::end(kDims), [&](int size) { return size >= dim; });
}

// Candidates for rows up to tile_q of head sizes up to largest_dim. Keys are dealt out to warps where rows are few, so that
// four warps or more keep copies on their way.
struct Tiles {
  int largest_dim, tile_q, tile_k, row_warps, key_warps, column_warps, ctas_per_sm;
  bool plain_only = false;  // options would need more registers
  bool lone = false;        // for tiles of rows so few that no multiprocessor has two CTAs: see is_lone
};
constexpr Tiles kSixteenBit[] = {
    {64, 16, 64, 1, 4, 1, 3},         //
    {64, 32, 64, 2, 2, 1, 3},         //
    {64, 64, 64, 4, 1, 1, 2},         //
    {128, 16, 64, 1, 4, 1, 2},        //
    {128, 16, 64, 1, 4, 1, 1},        //
    {128, 32, 64, 2, 2, 1, 2},        //
    {128, 32, 64, 2, 2, 1, 1},        //
    {128, 64, 64, 4, 1, 1, 2},        //
    {128, 64, 32, 4, 1, 1, 1},        //
    {256, 16, 64, 1, 4, 1, 1},        //
    {256, 16, 32, 1, 2, 2, 1},        //
    {256, 32, 64, 2, 2, 1, 1, true},  //
    {256, 32, 32, 2, 1, 2, 1},        //
    {256, 64, 64, 4, 1, 2, 1},        //
    {576, 16, 32, 1, 2, 2, 1},        //
    {576, 16, 16, 1, 1, 4, 1},        //
    {576, 32, 32, 2, 2, 2, 1},        //
    {576, 64, 32, 4, 1, 2, 1, true},  //
    {576, 16, 16, 1, 1, 2, 1},        // whose columns four warps cannot share
};
// With a warp more, for boxes.
constexpr Tiles kBoxed[] = {
    {128, 256, 64, 8, 1, 1, 1},              // products by warpgroups: see is_worth_warpgroups
    {128, 128, 64, 8, 1, 1, 1},              //
    {128, 16, 64, 1, 4, 1, 1, false, true},  //
    {128, 32, 64, 2, 4, 1, 1, false, true},  //
    {64, 16, 64, 1, 4, 1, 3, true},          //
    {64, 16, 64, 1, 4, 1, 2},                //
    {64, 32, 64, 2, 2, 1, 2},                //
    {64, 64, 64, 4, 1, 1, 2},                //
    {128, 16, 64, 1, 4, 1, 2},               //
    {128, 32, 64, 2, 2, 1, 2, true},         //
    {128, 32, 64, 2, 2, 1, 1},               //
    {128, 64, 64, 4, 2, 1, 1, true},         //
    {128, 64, 64, 4, 1, 1, 1},               //
    {256, 16, 64, 1, 4, 1, 1},               //
    {256, 32, 64, 2, 2, 1, 1, true},         //
    {256, 32, 32, 2, 1, 2, 1},               //
    {256, 64, 32, 4, 1, 1, 1, true},         //
    {576, 16, 32, 1, 2, 2, 1},               //
    {576, 32, 32, 2, 1, 2, 1, true},         //
};
constexpr Tiles kF32[] = {
    {64, 16, 64, 1, 4, 1, 2},   //
    {64, 32, 32, 2, 2, 1, 2},   //
    {64, 64, 32, 4, 1, 1, 2},   //
    {128, 16, 32, 1, 2, 2, 2},  //
    {128, 16, 32, 1, 2, 2, 1},  //
    {128, 32, 32, 2, 2, 1, 1},  //
    {128, 64, 32, 4, 1, 1, 1},  //
    {256, 16, 32, 1, 2, 2, 1},  //
    {256, 16, 16, 1, 1, 4, 1},  //
    {256, 32, 32, 2, 1, 2, 1},  //
    {256, 64, 32, 4, 1, 2, 1},  //
    {576, 16, 16, 1, 1, 4, 1},  //
    {576, 32, 16, 2, 1, 4, 1},  //
    {256, 16, 16, 1, 1, 2, 1},  //
};
constexpr Tiles kF64[] = {
    {64, 16, 32, 1, 2, 2, 1},   //
    {128, 16, 32, 1, 2, 2, 1},  //
    {128, 16, 16, 1, 1, 4, 1},  //
    {256, 16, 16, 1, 1, 4, 1},  //
    {256, 16, 16, 1, 1, 2, 1},  //
};

std::span<const Tiles> candidates(Element element, int copy) {
  if (copy == kCopyTma) return kBoxed;
  if (element == Element::f64) return kF64;
  if (element == Element::f32) return kF32;
  return kSixteenBit;
}

int options_of(const CacheProblem& p, int copy) {
  int options = (p.softcap > 0 ? kSoftcap : 0) | (p.slopes ? kAlibi : 0);
  if (copy == kCopyElements) options = kSoftcap | kAlibi;  // one kernel for all of them: it need not be fast
  return options == 0 && must_scale_first(p) ? static_cast<int>(kScaleFirst) : options;
}

// Boxes have whole panels of columns.
int boxed(int64_t dim) { return padded((dim + kPanelColumns - 1) / kPanelColumns * kPanelColumns); }
// Rows of a box: as many as a tile of keys has, or as divide a page. Without pages a tile is one box.
constexpr int64_t kBoxRows[] = {128, 64, 32, 16};
int64_t box_rows_of(const CacheProblem& p, const KvConfig& c) {
  return *std::find_if(std::begin(kBoxRows), std::end(kBoxRows),
                       [&](int64_t rows) { return c.tile_k % rows == 0 && p.cache.page_size % rows == 0; });
}

// Why keys and values are not copied as boxes; null: they are.
const char* no_tma(const CacheProblem& p, const Arch& arch, Kernels kernels) {
  if (kernels == Kernels::portable) return "CUFLASH_CUDA_KERNELS wants portable kernels";
  if (arch.number() != 90) return "tensor copies are used on Hopper alone";
  if (size_of(element_of(p.dtype)) != 2) return "tensor copies are for f16 and bf16";
  if (!has_tensor_map(p.k, cached_extent(p, p.dim_qk)) || !has_tensor_map(p.v, cached_extent(p, p.dim_v)))
    return "tensor copies need a cache whose rows begin on 16 bytes";
  if (p.cache.page_size % kBoxRows[std::size(kBoxRows) - 1] != 0)
    return "tensor copies need pages whose size is a multiple of 16";
  if (p.cache.page_size != 0 && p.cache.leftpad) return "left padding moves keys across the borders of pages";
  // Products read two pieces of a box side by side, and behind its last column lies another tile.
  if (p.v_in_k && (column_of_values(p) % 16 != 0 || column_of_values(p) + boxed(p.dim_v) > boxed(p.dim_qk)))
    return "values are columns of keys that do not lie in a box as products read them";
  return nullptr;
}

// Of all sequences and heads, so many rows or tiles each. Where there are more than any device or grid has room for, this
// says no more than that: what is decided by them stays in range, and launch_of refuses the plan.
int64_t of_all_heads(const CacheProblem& p, int64_t count) {
  constexpr int64_t kPlenty = int64_t{1} << 50;
  return (Checked(p.batch) * p.heads_k * count).at_most(kPlenty);
}

// Tiles of rows of all sequences and heads.
int64_t row_tiles(const CacheProblem& p, int tile_q) {
  const int64_t rows = std::max<int64_t>(1, p.len_q * p.group());
  return of_all_heads(p, (rows + tile_q - 1) / tile_q);
}

// As in KvConfig. The grid has three dimensions then, whose limits are 2^31 - 1 and twice 2^16 - 1.
bool is_plain(const CacheProblem& p) {
  constexpr int64_t kMostTiles = (int64_t{1} << 31) / kMostSplits, kMostSequences = (1 << 16) - 1;
  const bool whole = !p.packed() && !p.used_q && !p.cache.leftpad && p.cache.len_new == 0 && !p.rotary.cos;
  const bool aligned = has_vector_rows(p.q) && p.dim_qk % 8 == 0 && has_vector_rows(p.o) && p.dim_v % 8 == 0;
  return whole && aligned && p.o.dtype == p.dtype && row_tiles(p, 16) <= kMostTiles && p.batch <= kMostSequences;
}

int copy_of(const CacheProblem& p, const KvConfig& c) {
  if (!has_vector_rows(p.k) || !has_vector_rows(p.v)) return kCopyElements;
  return p.dim_qk == c.dim_qk && (c.v_in_k || p.dim_v == c.dim_v) ? kCopyWhole : kCopyVectors;
}

// The most stages that fit beside the other CTAs of a multiprocessor; 0: not two of them.
int stages_that_fit(KvConfig c, const Arch& arch, int most) {
  constexpr int kReserved = 1024;  // by CUDA, of every CTA
  for (c.stages = most; c.stages >= 2; --c.stages)
    if (shared_bytes(c) <= arch.shared_per_block && c.ctas_per_sm * (shared_bytes(c) + kReserved) <= arch.shared_per_sm)
      return c.stages;
  return 0;
}

constexpr int64_t kMostCuts = 8;  // of a sequence that is long: see even_out

// The most tiles of keys that a tile of rows may see.
int64_t most_key_tiles(const CacheProblem& p, int tile_q, int tile_k) {
  const int64_t queries = std::min(p.len_q, tile_q / p.group() + 2);
  const int64_t seen = std::min(p.len_k, p.window_left + p.window_right + queries);
  const int64_t whole = (seen + tile_k - 1) / tile_k;
  return seen < p.len_k ? whole + 1 : whole;  // a window need not begin with a tile
}

// Tiles of rows that fill the device with one CTA on each multiprocessor are not split: to add up splits takes longer than
// to wait for a sequence of this length.
bool fills_once(int64_t tiles, int64_t key_tiles, int64_t sms) {
  return tiles <= sms && 10 * tiles >= 9 * sms && key_tiles <= 2 * kLongTiles;
}

// Whether tiles of rows are so few that one CTA of a multiprocessor is enough, even where sequences are cut because they are
// long. Such a CTA has all shared memory, and most of its keys are on their way before its queries are there. The usual
// device decides, so that a kernel depends on nothing but the architecture.
bool is_lone(const CacheProblem& p, const Tiles& t, const Arch& arch) {
  const int64_t tiles = row_tiles(p, t.tile_q);
  return p.num_splits == 0 && (kMostCuts * tiles <= usual_sms(arch) ||
                               fills_once(tiles, most_key_tiles(p, t.tile_q, t.tile_k), usual_sms(arch)));
}

// Large tiles of rows read their keys once, but one CTA adds up all splits of such a tile, and of few tiles splits are many.
// With a fixed number of splits the batch must not decide.
bool is_worth_warpgroups(const CacheProblem& p, const Tiles& t, const Arch& arch) {
  return p.num_splits == 0 && 2 * row_tiles(p, t.tile_q) >= usual_sms(arch);
}

// Whether as many stages as fit are worth it: where no other CTA would come to the multiprocessor in any case.
bool has_all_memory(const KvConfig& c, const Tiles& t) { return t.lone || by_warpgroups(c); }

// Of the choice, where that is taken.
std::pair<KvConfig, bool> config_for(const CacheProblem& p, const Arch& arch, bool boxes, const tuned::Choice* choice) {
  KvConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = boxes ? boxed(p.dim_qk) : padded(p.dim_qk), c.dim_v = boxes ? boxed(p.dim_v) : padded(p.dim_v);
  // Products read values in pieces of 16 bytes.
  c.v_in_k = p.v_in_k && column_of_values(p) * size_of(c.element) % 16 == 0;
  c.copy = boxes ? static_cast<int>(kCopyTma) : copy_of(p, c);
  c.options = options_of(p, c.copy);
  if (apply_tuned(choice, arch, c)) return {c, true};
  // With a fixed number of splits nothing but a row's own sequence may decide about its bits: not how many queries the
  // longest one has.
  const int64_t rows = p.group() * (p.num_splits == 0 ? std::max<int64_t>(1, p.len_q) : 1);
  for (const int tile_q : {256, 128, 64, 32, 16}) {
    if (tile_q > 16 && rows <= tile_q / 2) continue;
    for (const Tiles& t : candidates(c.element, c.copy)) {
      if (t.tile_q != tile_q || std::max(c.dim_qk, c.dim_v) > t.largest_dim) continue;
      if (c.dim_v % (16 * t.column_warps) != 0 || (t.plain_only && c.options != 0)) continue;
      if (t.lone && !is_lone(p, t, arch)) continue;
      c.tile_q = t.tile_q, c.tile_k = t.tile_k;
      if (by_warpgroups(c) && (c.v_in_k || !is_worth_warpgroups(p, t, arch))) continue;
      c.row_warps = t.row_warps, c.key_warps = t.key_warps, c.column_warps = t.column_warps;
      c.ctas_per_sm = t.ctas_per_sm;
      c.stages = stages_that_fit(c, arch, has_all_memory(c, t) ? kMostLoneStages : kMostStages);
      if (c.stages != 0) return {c, false};
    }
  }
  refuse(join("no kernel over a cache of ", name_of(p.dtype), " with head sizes ", p.dim_qk, " and ", p.dim_v,
              " fits the shared memory of ", target_of(arch), "; the CPU backend computes any size"));
}

// Where there are tiles enough, one long sequence among short ones would keep the device waiting: long ones are cut, short
// ones are not. CTAs of splits that are not used leave at once, but must be launched.
void even_out(KvPlan& plan, int64_t key_tiles, int64_t tiles, int64_t slots) {
  constexpr int64_t kMostCtas = 32;  // for a slot
  if (plan.row_tiles != 1) return;   // many queries: their tiles are many, and so would be the sums to keep
  const int64_t cuts = std::min({kMostCuts, key_tiles / kLongTiles, kMostCtas * slots / tiles});
  if (cuts <= plan.splits) return;
  plan.splits = cuts;
  plan.reason = "long sequences are cut, so that none of them keeps the device waiting";
}

// When there are no more CTAs to start, those that run are done one after the other, for as long as one takes, and memory
// has less and less to do. Short ones fill that time: half of it, on average, in every slot.
void add_short_ones(KvPlan& plan, int64_t key_tiles, int64_t tiles, int64_t slots) {
  constexpr int64_t kMostShort = 4;
  if (plan.no_tma || plan.row_tiles != 1) return;
  // Ends of short ones cost more than they fill where all long ones start at one time, and where these are not long.
  const int64_t long_splits = std::max(plan.eager_splits, std::min(plan.splits, key_tiles / kLongTiles));
  if (tiles * long_splits <= slots || key_tiles < 2 * kLongTiles) return;
  const int64_t idle = slots * (key_tiles / long_splits) / 2, tiles_at_once = tiles * kShortTiles;
  plan.short_splits = std::min({kMostShort, key_tiles / (4 * kShortTiles), (idle + tiles_at_once - 1) / tiles_at_once,
                                kMostSplits - plan.splits});
  plan.splits += plan.short_splits;
}

// Fixed: as asked for. Otherwise as many as fill the device once, or a few times where that leaves less of it idle; the
// lengths are not known here, so what is divided evenly is the room.
// tuned: 0, or how many were the fastest.
void choose_splits(KvPlan& plan, const CacheProblem& p, int num_sms, int64_t tuned) {
  const int64_t key_tiles = std::max<int64_t>(1, most_key_tiles(p, plan.config.tile_q, plan.config.tile_k));
  if (p.num_splits != 0) {
    plan.splits = plan.eager_splits = std::min(p.num_splits, key_tiles), plan.least_tiles = 1;
    plan.reason = "as many splits as asked for, with tiles that depend on nothing but a sequence";
    if (plan.splits > kMostSplits)
      refuse(join("num_splits: got ", p.num_splits, ", but the CUDA kernels cut a sequence into at most ", kMostSplits,
                  " ranges"));
    return;
  }
  constexpr int64_t kLeastTiles = 2, kMostWaves = 4;
  const int64_t tiles = of_all_heads(p, plan.row_tiles);
  // Of few tiles many splits would have to be added up at the end: one CTA for each multiprocessor is enough then.
  const bool few = 2 * tiles <= num_sms;
  const int64_t all_slots = int64_t{num_sms} * plan.config.ctas_per_sm, slots = few ? num_sms : all_slots;
  const int64_t most = std::clamp<int64_t>(key_tiles / kLeastTiles, 1, kMostSplits);
  plan.least_tiles = kLeastTiles;
  plan.reason = "one split: there are tiles of rows enough to fill the device";
  if (tiles == 0 || p.len_q == 0) return;
  double best = 0;
  if (tuned != 0) plan.splits = std::min(tuned, most);
  for (int64_t waves = (tiles + slots - 1) / slots; tuned == 0 && waves <= kMostWaves + 1; ++waves) {
    const int64_t splits = std::clamp<int64_t>(waves * slots / tiles, 1, most);
    const double busy = static_cast<double>(tiles * splits) / static_cast<double>(waves * slots);
    if (busy <= 1.1 * best) continue;  // more waves mean more work at the ends of splits
    best = busy, plan.splits = splits;
  }
  if (plan.splits > 1) plan.reason = "as many splits as fill the device with parts of equal length";
  plan.eager_splits = plan.splits;
  if (plan.config.ctas_per_sm == 1 && plan.splits == 1 && fills_once(tiles, key_tiles, num_sms)) return;
  even_out(plan, key_tiles, tiles, slots);
  add_short_ones(plan, key_tiles, tiles, all_slots);
}

// Splits whose first tile is copied before lengths are known: those that are used as soon as there are keys for them, if
// these begin with the first row. Where all CTAs start at one time it saves the time until the work is known; where others
// come after them it saves nothing, and has been seen to cost up to 2%. Of keys that are not split two tiles: of those that
// are, the second one would be somebody else's as long as they are few.
void know_first_tiles(KvPlan& plan, const CacheProblem& p) {
  const bool from_first_row = !p.cache.leftpad && p.window_left >= p.len_k && p.len_k > 0;
  if (plan.no_tma || !from_first_row || !plan.at_once) return;
  plan.known_splits = plan.eager_splits;
  plan.known_tiles = plan.splits == 1 && p.len_k > plan.config.tile_k ? 2 : 1;
}

// Parts of tiles, keys or values, that a CTA asks for at one time. To be busy memory needs 44 KiB a multiprocessor on their
// way, while one more is there and the next one is asked for; of more some are served long before others, and what is read
// pushes more out of L2 that has to be written. Measured: docs/log.md.
int64_t loads_in_flight_of(const KvPlan& plan) {
  constexpr int64_t kBytes = 44 << 10;
  const KvConfig& c = plan.config;
  const int64_t parts = parts_of_tile(c), all = parts * c.stages, bytes = stage_bytes(c) / parts;
  if (plan.box_rows != c.tile_k || c.ctas_per_sm != 1 || by_warpgroups(c)) return all;
  return std::min(all, std::max(parts * plan.known_tiles, 1 + (kBytes + bytes - 1) / bytes));
}

// Whether splits post their sums to each other: cache/posts.h. All of them run at one time then. Every warp adds up some units of the
// rows, one after the other: of many rows and few splits these are so many that tickets are faster (docs/benchmarks.md).
bool exchange_pays(const KvPlan& plan) {
  constexpr int64_t kMostUnits = 4;  // of a warp
  const KvConfig& c = plan.config;
  if (!c.fast_decode || !plan.at_once || plan.splits == 1 || c.ctas_per_sm != 1) return false;
  return plan.state_rows * (c.dim_v / kExchangeColumns) <= kMostUnits * plan.splits * (num_threads(c) / 32);
}

KvWorkspace workspace_of(const KvPlan& plan, int64_t tiles) {
  KvWorkspace w;
  if (plan.splits <= 1 || plan.launch.grid_x == 0) return w;
  const Checked rows = Checked(tiles) * plan.splits * plan.state_rows;
  const int64_t real = sum_size(plan.config.element);
  const Checked columns = rows * plan.config.dim_v;
  constexpr int64_t kUnit = 256;
  const Checked states = round_up(Checked(tiles) * int64_t{sizeof(uint64)}, kUnit);
  // A post is 16 bytes for two numbers: cache/posts.h.
  const Checked exchanges = rows * (plan.config.dim_v / kExchangeColumns) * 16;
  const Checked sums = states + round_up(plan.config.l2_exchange ? exchanges : rows * 2 * real, kUnit);
  w.size =
      workspace_bytes(sums + columns * (plan.config.l2_exchange ? 8 : real));  // and no part of it is beyond its end
  w.states = workspace_bytes(states), w.sums = workspace_bytes(sums);
  return w;
}

}  // namespace

KvPlan plan_kv(const CacheProblem& p, const Arch& arch, int num_sms, Kernels kernels, const tuned::Choice* choice,
               SplitReduction reduction) {
  require_supported(p);
  KvPlan plan{};
  plan.no_tma = no_tma(p, arch, kernels);
  std::tie(plan.config, plan.tuned) = config_for(p, arch, !plan.no_tma, p.num_splits == 0 ? choice : nullptr);
  if (!plan.no_tma) plan.box_rows = box_rows_of(p, plan.config);
  // Calls with many queries take their time in any case; with a fixed number of splits a row's bits are the same in any call.
  plan.config.fast_decode = !plan.no_tma && !by_warpgroups(plan.config) && p.num_splits == 0 && is_plain(p);
  plan.first_wave_ctas = int64_t{num_sms} * plan.config.ctas_per_sm;
  const int64_t rows = p.len_q * p.group();
  // Sequences without queries may still have rows to append.
  const bool works = p.len_q > 0 || p.cache.len_new > 0;
  plan.row_tiles = std::max<int64_t>(1, (rows + plan.config.tile_q - 1) / plan.config.tile_q);
  plan.state_rows = std::clamp<int64_t>(rows, 1, plan.config.tile_q);
  plan.splits = plan.eager_splits = 1;
  choose_splits(plan, p, num_sms, plan.tuned ? choice->splits : 0);
  if (plan.tuned) plan.reason = kTunedReason;
  const int64_t tiles = of_all_heads(p, plan.row_tiles);
  plan.at_once = tiles * plan.splits <= plan.first_wave_ctas;
  plan.config.l2_exchange = reduction == SplitReduction::by_exchange && exchange_pays(plan);
  know_first_tiles(plan, p);
  plan.loads_in_flight = loads_in_flight_of(plan);
  plan.launch = launch_of(key_of(plan.no_tma ? KernelKind::kv_attention : KernelKind::sm90_kv, arch, plan.config),
                          works ? Checked(p.batch) * p.heads_k * plan.row_tiles * plan.splits : 0,
                          num_threads(plan.config), shared_bytes(plan.config));
  if (plan.config.fast_decode && plan.launch.grid_x != 0) {
    plan.launch.grid_x = static_cast<uint32_t>(p.heads_k * plan.row_tiles);
    plan.launch.grid_y = static_cast<uint32_t>(p.batch), plan.launch.grid_z = static_cast<uint32_t>(plan.splits);
  }
  plan.launch.programmatic = !plan.no_tma, plan.launch.cooperative = plan.config.l2_exchange != 0;
  plan.workspace = workspace_of(plan, tiles);
  return plan;
}

RowsExtent cached_extent(const CacheProblem& p, int64_t dim) {
  return {dim, p.cache.page_size != 0 ? p.cache.page_size : p.len_k, p.heads_k, p.cache.entries};
}

int64_t column_of_values(const CacheProblem& p) {
  return (static_cast<const std::byte*>(p.v.data) - static_cast<const std::byte*>(p.k.data)) / size_of(p.dtype);
}

MergePlan plan_merge(const MergeProblem& p, const Arch& arch) {
  if (p.dim > kLongest)
    refuse(join("o_a: head size ", p.dim, " is above ", kLongest, ", the largest of the CUDA kernel"));
  MergeConfig c{element_of(p.o_a.dtype), 32};
  while (c.lanes > 4 && c.lanes / 2 * 8 >= p.dim) c.lanes /= 2;
  const int64_t rows = (Checked(p.batch) * p.heads * p.len).value("o_a: its rows are");
  const int64_t rows_of_cta = num_threads(c) / c.lanes, ctas = rows / rows_of_cta + (rows % rows_of_cta != 0);
  return {c, launch_of(key_of(KernelKind::merge_states, arch, c), ctas, num_threads(c), 0)};
}

int usual_sms(const Arch& arch) {
  switch (arch.number()) {
    case 80: return 108;
    case 86: return 84;
    case 89: return 142;
    case 90: return 132;
    case 100:
    case 103: return 148;
    default: return 128;
  }
}

}  // namespace cuflash::cuda
