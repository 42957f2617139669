// The forward kernel of sm_90a: wgmma, and TMA loads by a producer warpgroup.
#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/kv_common.h"
#include "cuda/families/params_forward.h"
#include "cuda/families/params_kv.h"
#include "cuda/families/registry.h"
#include "cuda/families/sm90_forward_tiles.h"
#include "cuda/plan/key_splits.h"
#include "cuda/plan/mask_lists.h"
#include "cuda/plan/plan_common.h"
#include "cuda/plan/tile_order.h"
#include "cuda/plan/tuned_config.h"
#include "error.h"
#include "kv/geometry.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kKernel{.name = "sm90_forward",
                             .header = "sm90/forward/forward.h",
                             .config = "Sm90ForwardConfig",
                             .params = "Sm90ForwardParams",
                             .bounds = "num_threads(C), ctas_per_sm(C)",
                             .config_ints = kInts<Sm90ForwardConfig>,
                             .takes_tensor_maps = true};
// One CTA lists the query tiles of sequences whose lengths only the device knows.
constexpr KernelType kListKernel{.name = "sm90_tile_list",
                                 .header = "sm90/lists/tile_list.h",
                                 .config = "Sm90ForwardConfig",
                                 .params = "Sm90ForwardParams",
                                 .bounds = "kTileListThreads, 1",
                                 .config_ints = kInts<Sm90ForwardConfig>,
                                 .takes_tensor_maps = true};
constexpr KernelType kCombineKernel{.name = "combine_splits",
                                    .header = "sm90/forward/combine_splits.h",
                                    .config = "MergeConfig",
                                    .params = "Sm90ForwardParams",
                                    .bounds = "num_threads(C)",
                                    .config_ints = kInts<MergeConfig>,
                                    .takes_tensor_maps = true};
// Warps list the key tiles that a mask tensor shows to each query tile.
constexpr KernelType kMaskListKernel{.name = "sm90_mask_list",
                                     .header = "sm90/lists/mask_list.h",
                                     .config = "Sm90ForwardConfig",
                                     .params = "Sm90ForwardParams",
                                     .bounds = "kMaskListThreads",
                                     .config_ints = kInts<Sm90ForwardConfig>,
                                     .takes_tensor_maps = true};
constexpr const KernelType* kKernels[] = {&kKernel, &kListKernel, &kCombineKernel, &kMaskListKernel};

// Panels are 64 columns wide.
int panel_dim(int64_t dim) { return padded_head_size(std::max<int64_t>(dim, kPanelColumns)); }

// kTmaBias if TMA can load the bias. A bias of another type than q, or with rows that do not start on 16-byte
// boundaries, is loaded element by element.
int bias_schedule(const ForwardProblem& p) {
  return p.bias && p.bias.dtype == p.dtype && has_tensor_map(p.bias, score_extent(p, p.bias)) ? kTmaBias : 0;
}

// Softcap bounds scores to [-softcap, softcap], in powers of two [-c, c]. With a row maximum of c - spare_exponent, no
// probability is below 2^-100, and none above 2^45, so that values of up to 1e24 do not overflow. f16 does not have
// that range. Scale and softcap must also be close enough that the coefficients of the polynomial fit into floats.
// spare_exponent is an integer, so that the probability of a score at the cap is a power of two: 16 bits then hold it
// exactly, where the roundings of a row whose scores are all at the cap would all go the same way.
constexpr double kMinExponent = -100, kMaxSpare = 45;
double spare_exponent(const Problem& p) { return std::ceil(std::max(0.0, 2 * p.softcap * kLog2e + kMinExponent)); }
bool has_fixed_max(const Problem& p) {
  return p.dtype == DType::bf16 && problem_options(p) == kSoftcap && spare_exponent(p) <= kMaxSpare &&
         cap_polynomial(p.scale, p.softcap).limit > 0;
}
float fixed_max_of(const Problem& p) { return static_cast<float>(1 - spare_exponent(p) / (p.softcap * kLog2e)); }

Sm90ForwardConfig config_without_tiles(const ForwardProblem& p) {
  Sm90ForwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = panel_dim(p.dim_qk), c.dim_v = panel_dim(p.dim_v);
  c.options = problem_options(p);
  c.schedule = bias_schedule(p) | (has_fixed_max(p) ? kFixedMax : 0);
  c.work = p.cache ? kPagedKeys : 0;
  return c;
}

// K or V as TMA sees it: the pages of a cache, or the rows of a tensor.
RowsExtent stored_extent(const Problem& p, int64_t dim) {
  RowsExtent e = p.cache ? cached_extent(p, dim) : key_extent(p);
  e.dim = dim;
  return e;
}
// Rows of a TMA box of K or V. A box does not cross the end of a page.
int box_rows(const Problem& p, int tile_k) {
  return p.cache.page_size != 0 ? as_int(std::gcd(p.cache.page_size, int64_t{tile_k})) : tile_k;
}

void take_tiles(Sm90ForwardConfig& c, const ForwardTiles& t) {
  c.warpgroups = t.warpgroups, c.tile_k = t.tile_k, c.stages = t.stages, c.schedule |= t.schedule;
}

const char* why_not(const ForwardProblem& p, const PlanTarget&) {
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "its products take f16 and bf16 only";
  if (p.batch == 0 || p.len_q == 0 || p.len_k == 0) return "there is nothing to multiply";
  if (!has_vector_rows(p.q) || !has_vector_rows(p.k) || !has_vector_rows(p.v))
    return "rows of q, k or v do not start on 16-byte boundaries";
  if (!has_tensor_map(p.q, query_extent(p)) || !has_tensor_map(p.k, stored_extent(p, p.dim_qk)) ||
      !has_tensor_map(p.v, stored_extent(p, p.dim_v)))
    return "rows of q, k or v repeat, or are 2^40 bytes apart";
  constexpr int64_t kTooMany = int64_t{1} << 31;
  if (query_tiles(p, kWarpgroupRows).at_most(kTooMany) == kTooMany) return "there are 2^31 tiles of queries or more";
  if (p.softcap > 0 && tanh_argument(p) == 0) return "softcap and scale are more than 30 orders of magnitude apart";
  return nullptr;
}

// The schedule bits that a config may have. Bits that belong to an option are legal only with that option.
int allowed_schedule(const Sm90ForwardConfig& c) {
  const bool may_keep = !has_one_key_tile(c) && (c.options == kMaskTensor || (c.options & (kBias | kMaskTensor)) == 0);
  const int short_tiles = c.warpgroups <= 2 ? kAllMoreCtas | (ctas_per_sm(c) > 1 ? kOneKeyTile : 0) : 0;
  return short_tiles | kPingPong | kPinWait | kStoreBySmem | kPrefetchQ | (c.options & kBias ? kTmaBias : 0) |
         (c.options == kSoftcap && c.element == Element::bf16 ? kFixedMax : 0) |
         (may_keep && (c.schedule & kFixedMax) == 0 ? kFirstMax : 0);
}

// Two boxes of the mask's bits hold any tile of at most 128 keys.
bool has_mask_boxes(const Sm90ForwardConfig& c) {
  return c.warpgroups <= kMaxMaskWarpgroups && c.tile_k <= kMaskBoxKeys;
}

// Registers hold the scores of a tile, the probabilities, which take half as many, and the output. With kFirstMax they
// also hold the probabilities of the previous tile, but there is no row maximum, so fewer other registers are in use.
// With one key tile the scores are no longer needed when the output is computed.
int estimated_registers(const Sm90ForwardConfig& c) {
  constexpr int kBesideOneKeyTile = 38;
  if (has_one_key_tile(c)) return std::max(c.tile_k / 2, c.tile_k / 4 + c.dim_v / 2) + kBesideOneKeyTile;
  if (uses_first_max(c)) return (c.dim_v + 2 * c.tile_k) / 2 + kOtherRegisters / 2;
  return (2 * c.dim_v + 3 * c.tile_k) / 4 + kOtherRegisters;
}
Limits config_limits(const Sm90ForwardConfig& c, const Arch& arch) {
  if (c.warpgroups < 1 || c.warpgroups > 4 || c.tile_k < 16 || c.tile_k > 256 || c.stages < 2 || c.stages > 8 ||
      c.schedule < 0 || (c.schedule & ~allowed_schedule(c)) != 0 || (reads_mask(c) && !has_mask_boxes(c)))
    return kNoShape;
  return limits_with(arch.wgmma && c.tile_k % 16 == 0, shared_bytes(c), ctas_per_sm(c), arch, estimated_registers(c),
                     consumer_registers(c));
}

using Member = Tunable<Sm90ForwardConfig>::Member;
constexpr Member kMembers[] = {{&tuned::Choice::warpgroups, &Sm90ForwardConfig::warpgroups},
                               {&tuned::Choice::tile_k, &Sm90ForwardConfig::tile_k},
                               {&tuned::Choice::stages, &Sm90ForwardConfig::stages},
                               {&tuned::Choice::schedule, &Sm90ForwardConfig::schedule}};
constexpr Tunable<Sm90ForwardConfig> kTunable{"sm90", kMembers, config_limits};

// Schedule bits that follow from the call and are not part of a choice. Another call of the same kind may not be able
// to use TMA for the bias, for example.
constexpr int kOptionSchedule = kTmaBias | kFixedMax;
bool apply_choice(const ForwardProblem& p, const PlanTarget& target, Sm90ForwardConfig& c) {
  Sm90ForwardConfig wanted = c;
  if (!apply_tuned(kTunable, target.choice, target.arch, wanted)) return false;
  wanted.schedule = (wanted.schedule & ~kOptionSchedule) | (c.schedule & kOptionSchedule);
  fit_to_sequences(wanted, p);
  if (has_one_key_tile(wanted) && p.len_k > wanted.tile_k) return false;
  if (!is_legal(config_limits(wanted, target.arch))) return false;
  c = wanted;
  return true;
}

constexpr int64_t kUnit = 256;  // bytes; parts of the workspace begin at a multiple of it

// Plans the partial results of all rows and splits, and the launch that reduces them.
void plan_splits(ForwardPlan& plan, const ForwardProblem& p, Sm90ForwardConfig& c, const Arch& arch) {
  constexpr int64_t kReal = sizeof(float);
  c.work |= kSplitKeys | (plan.packed_heads > 1 ? kPackHeads : 0);
  // O is not stored by TMA, and most CTAs have one tile.
  c.schedule &= ~(kStoreBySmem | kPrefetchQ | kOneKeyTile | kAllMoreCtas);
  constexpr int kMaxStages = 4;
  while (c.stages < kMaxStages) {
    Sm90ForwardConfig more = c;
    if (++more.stages; !is_legal(config_limits(more, arch))) break;
    c = more;
  }
  const Checked rows = Checked(p.heads_q) * (p.packed() ? p.total_q : p.batch * p.len_q) * plan.splits;
  ForwardWorkspace& w = plan.workspace;
  const Checked sums = round_up(rows * 2 * kReal, kUnit);
  w.sums = workspace_bytes(sums), w.size = workspace_bytes(sums + rows * c.dim_v * kReal);
  const MergeConfig merge{c.element,
                          static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(c.dim_v, 128)))) / 4};
  const int64_t rows_of_cta = rows_of_reduction(merge, static_cast<unsigned>(plan.splits));
  plan.combine = launch_of(key_of(kCombineKernel, arch, merge), Checked((p.len_q + rows_of_cta - 1) / rows_of_cta),
                           num_threads(merge), kReductionBytes);
  // The dimensions fit the grid: keys are split only if there are few tiles, so heads and batch entries are few.
  plan.combine.grid_y = static_cast<uint32_t>(p.heads_q), plan.combine.grid_z = static_cast<uint32_t>(p.batch);
  plan.combine.programmatic = true;
}

// An upper bound of the query tiles of one head of all sequences. Each packed sequence has at most one tile that is not
// full.
Checked listed_tiles(const Problem& p, int tile_q) {
  const Checked of_longest = Checked(p.batch) * ((p.len_q + tile_q - 1) / tile_q);
  const int64_t of_packed = p.packed() ? p.total_q / tile_q + p.batch : kUnbounded;
  return Checked(of_longest.at_most(of_packed));
}

// Whether, by their total number of rows, packed sequences are nearly all as long as the longest.
bool are_equally_long(const ForwardProblem& p) {
  constexpr double kNearlyAll = 0.94;
  const auto full = [&](int64_t total, int64_t length) {
    return static_cast<double>(total) >= kNearlyAll * static_cast<double>(p.batch) * static_cast<double>(length);
  };
  return p.packed() && full(p.total_q, p.len_q) && full(p.total_k, p.len_k);
}

// Whether to take tiles from a list: for sequences of different lengths, and for calls with a mask tensor, if they fill
// the device a few times. Making the list takes a few microseconds.
bool is_worth_list(const ForwardProblem& p, int tile_q, int num_sms) {
  constexpr int64_t kMaxSequences = 1 << 14, kMinRounds = 2;
  if (p.batch > kMaxSequences) return false;
  if (!p.has_mask()) {
    if ((!p.packed() && !p.used_q && !p.used_k) || p.batch < 2) return false;
    if (are_equally_long(p) && !p.used_q && !p.used_k) return false;
  }
  const int64_t tiles = (listed_tiles(p, tile_q) * p.heads_q).at_most(kUnbounded);
  return tiles >= kMinRounds * num_sms && tiles < int64_t{1} << 31;
}

// The number of groups of 64 queries if the mask decides which of them form a tile, otherwise 0. It does if all heads
// share the mask. Tiles are then taken from a list, and a CTA makes the lists of one batch entry.
int64_t tiling_groups(const ForwardProblem& p, const Sm90ForwardConfig& c) {
  const int64_t groups = (p.len_q + kWarpgroupRows - 1) / kWarpgroupRows;
  const bool few = groups <= kMaxTilingGroups && p.len_k <= kMaxTilingKeys;
  return aligns_tiles_to_mask(c) && few && !mask_differs_by_head(p) ? groups : 0;
}
MaskListExtent mask_list_extent(const ForwardProblem& p, const Sm90ForwardConfig& c) {
  constexpr int64_t kWarps = kMaskListThreads / 32;
  const int64_t groups = tiling_groups(p, c);
  return {p.heads_q,
          groups != 0 ? (groups + kWarps - 1) / kWarps * kWarps : (p.len_q + tile_q_of(c) - 1) / tile_q_of(c),
          (p.len_k + c.tile_k - 1) / c.tile_k, true, groups};
}

void plan_list(ForwardPlan& plan, const ForwardProblem& p, Sm90ForwardConfig& c, const Arch& arch) {
  c.work |= kTileList;
  Sm90ForwardConfig list{};
  list.element = Element::bf16, list.warpgroups = c.warpgroups, list.tile_k = c.tile_k;  // all that the list depends on
  list.options = c.options & kMaskTensor;
  plan.list = launch_of(key_of(kListKernel, arch, list), 1, kTileListThreads, kTileListBytes);
  plan.list.programmatic = reads_mask(c);  // runs after the lists of key tiles
  ForwardWorkspace& w = plan.workspace;
  w.list = kUnit;
  const Checked tiles = reads_mask(c) ? Checked(p.batch) * mask_list_extent(p, c).tiles : listed_tiles(p, plan.tile_q);
  w.size = workspace_bytes(tiles * int64_t{sizeof(ListedTile)} + kUnit);
}

// Plans the lists of key tiles, in the workspace after its other parts.
void plan_mask(ForwardPlan& plan, const ForwardProblem& p, const Sm90ForwardConfig& c, const Arch& arch) {
  Sm90ForwardConfig list{};
  list.element = Element::bf16, list.warpgroups = c.warpgroups, list.tile_k = c.tile_k;  // all that the lists depend on
  const MaskListExtent extent = mask_list_extent(p, c);
  plan.mask_lists = plan_mask_lists(key_of(kMaskListKernel, arch, list), p, extent);
  ForwardWorkspace& w = plan.workspace;
  w.mask_lists = (w.size + kUnit - 1) / kUnit * kUnit;
  w.size =
      workspace_bytes(Checked(static_cast<int64_t>(w.mask_lists)) + static_cast<int64_t>(mask_list_bytes(p, extent)));
}

// Further tiles for calls with few query tiles, for head sizes above `beyond` up to largest_dim. Without splits they
// use the stages and the schedule of a table's entry. One warpgroup serves calls that use a small part of the SMs: it
// overlaps less, but a query tile takes less time.
struct SmallGridTiles {
  int beyond, largest_dim, warpgroups, tile_k, split_stages, stages, schedule;
};
constexpr SmallGridTiles kSmallGridTiles[] = {{0, 64, 1, 128, 4, 4, kPinWait},
                                              {0, 64, 2, 128, 4, 4, kPingPong | kPinWait},
                                              {0, 64, 3, 128, 4, 4, kPingPong | kPinWait},
                                              {64, 128, 1, 128, 3, 3, kPinWait},
                                              {64, 128, 2, 128, 3, 2, kStagedStore},
                                              {64, 128, 3, 80, 4, 4, kPingPong | kPinWait},
                                              {128, 256, 1, 80, 2, 2, kPinWait}};

// Whether the tiles leave enough registers for the options, which may need those of kernels with two warpgroups.
// Options that need more only use the table's tiles.
bool has_registers(const SmallGridTiles& t, const Sm90ForwardConfig& c) {
  return c.options == 0 || (t.warpgroups <= 2 && needs_of(c) <= RegisterNeeds::dropout);
}
// Whether the heads of a group can be rows of one tile. A TMA box has all heads of several queries, which fill a
// warpgroup's rows. With three warpgroups, masks would need too many registers.
bool can_pack_heads(const ForwardProblem& p, const SmallGridTiles& t) {
  return t.warpgroups == 2 && p.group() > 1 && kWarpgroupRows % p.group() == 0 && p.q.head_stride != 0;
}

// Uses the tiles and the number of splits with the least estimated time, if that is clearly less than the time of the
// table's tiles without splits.
void choose_splits(ForwardPlan& plan, const ForwardProblem& p, Sm90ForwardConfig& c, const PlanTarget& target) {
  const Sm90ForwardConfig built_in = c;
  const auto splitting = [&](const Sm90ForwardConfig& tiled, int64_t packed) {
    return key_splits(p, {tile_q_of(tiled), tiled.tile_k, packed, tiled.dim_v, target.num_sms});
  };
  const KeySplitting as_built_in = splitting(c, 1);
  double least = 0.9 * as_built_in.unsplit_time;
  const auto take = [&](double time, int64_t splits, int64_t packed, const Sm90ForwardConfig& tiled) {
    if (time >= least) return;
    least = time, c = tiled;
    plan.splits = splits, plan.packed_heads = packed;
  };
  constexpr int kMaxWarpgroups = 3;  // a fourth one would leave too few registers for the split's epilogue
  if (c.warpgroups <= kMaxWarpgroups) take(as_built_in.time, as_built_in.splits, 1, c);
  for (const SmallGridTiles& t : kSmallGridTiles) {
    const int dim = std::max(c.dim_qk, c.dim_v);
    // With three warpgroups, and with dropout, there are too few registers to keep the scores of these tiles.
    const bool stays = t.warpgroups <= 2 && needs_of(built_in) <= RegisterNeeds::arithmetic;
    const int softmax = built_in.schedule & (kFixedMax | (stays ? kFirstMax : 0));
    if (plan.tuned || dim <= t.beyond || dim > t.largest_dim || !has_registers(t, built_in)) continue;
    Sm90ForwardConfig tiled = built_in;
    tiled.warpgroups = t.warpgroups, tiled.tile_k = t.tile_k, tiled.stages = t.stages;
    tiled.schedule = t.schedule | softmax;
    if (const double time = splitting(tiled, 1).unsplit_time; time > 0) take(time, 1, 1, tiled);
    tiled.stages = t.split_stages, tiled.schedule = (t.schedule & (kPingPong | kPinWait)) | softmax;
    for (const int64_t packed : {int64_t{1}, p.group()}) {
      if (packed > 1 && (c.options != 0 || !can_pack_heads(p, t))) continue;
      const KeySplitting found = splitting(tiled, packed);
      if (found.splits > 1) take(found.time, found.splits, packed, tiled);
    }
  }
  plan.tile_q = tile_q_of(c), plan.tile_k = c.tile_k;
}

// Decides how CTAs share the work: static tiles, splits of the keys, or a list of tiles.
void plan_work(ForwardPlan& plan, const ForwardProblem& p, Sm90ForwardConfig& c, const PlanTarget& target) {
  choose_splits(plan, p, c, target);
  if (plan.splits > 1) plan_splits(plan, p, c, target.arch);
  else if (is_worth_list(p, plan.tile_q, target.num_sms)) plan_list(plan, p, c, target.arch);
}

ForwardPlan plan(const ForwardProblem& p, const PlanTarget& target) {
  Sm90ForwardConfig c = config_without_tiles(p);
  ForwardPlan plan;
  plan.family = &sm90_forward;
  plan.tuned = apply_choice(p, target, c);
  plan.reason = plan.tuned ? kTunedReason : "wgmma products and TMA loads";
  if (!plan.tuned) {
    take_tiles(c, tiles_for(p, c, target.num_sms));
    take_short_tiles(c, p, target.arch, target.num_sms, config_limits);
  }
  plan.tile_q = tile_q_of(c), plan.tile_k = c.tile_k;
  if (target.has_workspace) plan_work(plan, p, c, target);
  if (reads_mask(c)) plan_mask(plan, p, c, target.arch);
  plan.launch = launch_of(key_of(kKernel, target.arch, c), query_tiles(p, plan.tile_q, plan.packed_heads) * plan.splits,
                          num_threads(c), shared_bytes(c));
  plan.launch.persistent = true, plan.launch.ctas_per_sm = ctas_per_sm(c);
  plan.launch.programmatic = lists_tiles(c);
  return plan;
}

// Registers that options need in addition to the estimate of config_limits. Kernels that exceed the sum spill.
int option_registers(const Sm90ForwardConfig& c) {
  if ((c.options & kDropout) != 0) return 20;
  return reads_mask(c) && uses_first_max(c) ? 10 : 0;
}

// Candidates for a call with options: for every number of warpgroups and each kind of softmax, the largest key tiles
// that may fit the registers, with as much of the remaining schedule as fits into shared memory.
std::vector<Alternatives> option_candidates(const Sm90ForwardConfig& built_in, const Arch& arch) {
  constexpr int kMaxTiles = 3;
  const bool wide = std::max(built_in.dim_qk, built_in.dim_v) > 128;
  std::vector<Alternatives> all;
  const auto with_room = [&](Sm90ForwardConfig c, int softmax) {
    Alternatives kernels;
    for (const int rest : {kStoreBySmem | kPrefetchQ, int{kStoreBySmem}, 0})
      for (const int stages : {4, 3, 2}) {
        c.schedule = softmax | rest | (built_in.schedule & kOptionSchedule), c.stages = stages;
        const Limits l = config_limits(c, arch);
        if (is_legal(l) && l.registers + option_registers(c) <= l.max_registers)
          kernels.push_back(key_of(kKernel, arch, c));
      }
    return kernels;
  };
  for (const int softmax : {kPinWait | kFirstMax, kPingPong | kPinWait})
    for (const int warpgroups : {2, 3, 4}) {
      int tiles = 0;
      for (int tile_k = kMaskBoxKeys; tile_k >= (wide ? 48 : 64) && tiles < kMaxTiles; tile_k -= 16) {
        Sm90ForwardConfig c = built_in;
        c.warpgroups = warpgroups, c.tile_k = tile_k;
        if (const Alternatives kernels = with_room(c, softmax); !kernels.empty()) all.push_back(kernels), ++tiles;
      }
    }
  return all;
}

// Candidates for short sequences: those of which several CTAs share an SM. Two warpgroups have registers only for one
// key tile.
std::vector<Alternatives> short_candidates(const ForwardProblem& p, const Arch& arch) {
  constexpr int64_t kLongest = 1024;
  std::vector<Alternatives> all;
  for (const int softmax : {int{kFirstMax}, 0})
    for (const int warpgroups : {1, 2})
      for (const int tile_k : {64, 80, 128})
        for (const int ctas : {4, 3, 2}) {
          const bool one_key_tile = p.len_k <= tile_k;
          if (!one_key_tile && (warpgroups > 1 || std::max(p.len_q, p.len_k) > kLongest)) continue;
          if (one_key_tile && softmax != 0) continue;  // without further tiles nothing keeps a maximum
          Alternatives kernels;
          for (const int stages : {3, 2}) {
            Sm90ForwardConfig c = config_without_tiles(p);
            c.warpgroups = warpgroups, c.tile_k = tile_k, c.stages = stages;
            c.schedule |= kPinWait | kPrefetchQ | softmax | (ctas - 1) * kMoreCtas;
            fit_to_sequences(c, p);
            if (config_limits(c, arch).fault == Fault::none) kernels.push_back(key_of(kKernel, arch, c));
          }
          if (!kernels.empty()) all.push_back(kernels);
        }
  return all;
}

// The plan's config or, for short sequences, the one it would have with one CTA per SM.
Sm90ForwardConfig long_config(const ForwardProblem& p, const ForwardPlan& plan, const Arch& arch) {
  auto c = plan.launch.kernel.as<Sm90ForwardConfig>();
  if (ctas_per_sm(c) > 1) {
    c = config_without_tiles(p);
    take_tiles(c, tiles_for(p, c, arch.usual_sms));
  }
  return c;
}

std::vector<Alternatives> candidates(const ForwardProblem& p, const ForwardPlan& plan, const Arch& arch) {
  constexpr int kUsualSchedule = kPingPong | kPinWait;
  const Sm90ForwardConfig built_in = long_config(p, plan, arch);
  std::vector<Alternatives> all = short_candidates(p, arch);
  if (built_in.options != 0) {
    std::ranges::copy(option_candidates(built_in, arch), std::back_inserter(all));
    return all;
  }
  const auto with_stages = [&](Sm90ForwardConfig c) {
    Alternatives kernels;
    for (const int stages : {4, 3, 2}) c.stages = stages, kernels.push_back(key_of(kKernel, arch, c));
    return kernels;
  };
  for (const KernelKey& one : with_stages(built_in)) all.push_back({one});
  for (const int flag : {int{kPingPong}, int{kPinWait}, int{kStoreBySmem}, int{kPrefetchQ}, int{kFirstMax}}) {
    Sm90ForwardConfig c = built_in;
    c.schedule ^= flag;
    all.push_back(with_stages(c));
  }
  for (const int warpgroups : {1, 2, 3, 4})
    for (int tile_k = 48; tile_k <= 176; tile_k += 16)
      for (const int schedule : {built_in.schedule, kUsualSchedule | (built_in.schedule & kOptionSchedule)}) {
        Sm90ForwardConfig c = built_in;
        c.warpgroups = warpgroups, c.tile_k = tile_k, c.schedule = schedule;
        all.push_back(with_stages(c));
      }
  return all;
}

// Whether few CTAs read the same part of the keys.
bool has_few_readers(const ForwardProblem& p, const ForwardPlan& plan, const Sm90ForwardConfig& c) {
  const int64_t rows = p.len_q * plan.packed_heads, tiles = (rows + tile_q_of(c) - 1) / tile_q_of(c);
  return tiles * (p.group() / plan.packed_heads) <= 3;
}
KeySplits splits_of(const ForwardProblem& p, const ForwardPlan& plan, const Sm90ForwardConfig& c, void* workspace) {
  if (plan.splits == 1) return {};
  // Equals ScoreOptions::kFoldsFactor: with a bias, or a scale that cannot be folded, scores are in natural units.
  const bool folds = (c.options & kBias) == 0 && ((c.options & kScaleFirst) == 0 || (c.options & kSoftcap) != 0);
  const double factor = folds ? (p.softcap > 0 ? p.softcap : p.scale) : 1;
  const auto part = [&](size_t offset) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + offset);
  };
  return {part(plan.workspace.sums),
          part(plan.workspace.states),
          p.heads_q * (p.packed() ? p.total_q : p.batch * p.len_q),
          static_cast<unsigned>(plan.splits),
          c.dim_v,
          static_cast<float>(factor * kLog2e),
          static_cast<float>(factor),
          has_few_readers(p, plan, c)};
}

TileList list_of(const ForwardProblem& p, const ForwardPlan& plan, int num_sms, void* workspace) {
  if (plan.list.grid_x == 0) return {};
  const int64_t longest = max_visited_tiles(p, plan.tile_q, plan.tile_k);
  // The mean of packed lengths is known, and longer sequences have more of the tiles; a causal mask without a window
  // hides half of the keys.
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double filled = p.packed() ? std::sqrt(real(p.total_q) / (real(p.batch) * real(p.len_q))) : 1;
  const double seen = p.window_right < kUnbounded && p.window_left >= p.len_k ? 0.5 : 1;
  const ListedWork work{listed_tiles(p, plan.tile_q).at_most(kUnbounded), longest, real(longest) * filled * seen,
                        int64_t{num_sms} * plan.launch.ctas_per_sm};
  auto* counters = static_cast<unsigned*>(workspace);
  return {reinterpret_cast<ListedTile*>(static_cast<std::byte*>(workspace) + plan.workspace.list), counters,
          counters + 1, static_cast<unsigned>(listed_heads_per_group(p, work)), static_cast<int>(longest)};
}

// The lists of key tiles. Query tiles are not aligned to the mask if statistics are requested, because these count the
// tiles of a call without a mask.
MaskLists forward_mask_lists(const ForwardProblem& p, const ForwardPlan& plan, const Sm90ForwardConfig& c,
                             const LaunchContext& context) {
  MaskLists lists =
      mask_lists(p, mask_list_extent(p, c), static_cast<std::byte*>(context.workspace) + plan.workspace.mask_lists);
  if (context.tile_counts) lists.aligned = 0;
  return lists;
}

// Q with heads and rows exchanged: the heads of a query are adjacent rows of a box.
TensorMap packed_query_map(const ForwardProblem& p, int packed) {
  ConstRows q = p.q;
  std::swap(q.row_stride, q.head_stride);
  const RowsExtent e = query_extent(p);
  return tensor_map(q, {e.dim, e.heads, e.rows, e.batch}, packed, kPanelColumns, kWarpgroupRows / packed);
}

// Whether TMA can store O. If a row ends within a piece of 16 bytes, TMA writes beyond it: an H200 wrote the byte after
// 57 elements.
bool stores_by_tma(const ForwardProblem& p, const ConstRows& o) {
  return p.dim_v * static_cast<int64_t>(size_of(o.dtype)) % 16 == 0 && o.dtype == p.dtype &&
         has_tensor_map(o, output_extent(p));
}

// A batch index is a table of entries that are one page each.
PageTable page_table(const Problem& p, int tile_k) {
  if (!p.cache) return {};
  const CachedKeys& c = p.cache;
  const bool paged = c.page_size != 0;
  const int page_size = as_int(paged ? c.page_size : p.len_k), rows = box_rows(p, tile_k);
  return {paged ? c.table : c.entry, paged ? c.table_stride : 1, page_size, divisor(static_cast<unsigned>(page_size)),
          as_int(p.len_k) - 1,       as_int(c.entries) - 1,      rows,      tile_k / rows};
}

Sm90ForwardParams params_of(const ForwardProblem& p, const ForwardPlan& plan, const LaunchContext& context) {
  const auto c = plan.launch.kernel.as<Sm90ForwardConfig>();
  const ConstRows o{p.o.data, p.o.dtype, p.o.batch_stride, p.o.head_stride, p.o.row_stride};
  const bool store_tma = (c.schedule & kStoreBySmem) != 0 && stores_by_tma(p, o);
  const int packed = static_cast<int>(plan.packed_heads);
  return {packed > 1 ? packed_query_map(p, packed) : tensor_map(p.q, query_extent(p), kWarpgroupRows),
          tensor_map(p.k, stored_extent(p, p.dim_qk), box_rows(p, plan.tile_k)),
          tensor_map(p.v, stored_extent(p, p.dim_v), box_rows(p, plan.tile_k)),
          store_tma ? tensor_map(o, output_extent(p), kWarpgroupRows) : TensorMap{},
          store_tma,
          forward_params(p, context.tile_counts),
          tile_order(p, plan.tile_q, grid_of(plan.launch, context.num_sms), plan.splits, plan.packed_heads),
          static_cast<float>((p.softcap > 0 ? p.softcap : p.scale) * kLog2e),
          p.softcap > 0 ? fixed_max_of(p) : 0,
          p.softcap > 0 ? cap_polynomial(p.scale, p.softcap) : CapPolynomial{},
          (c.schedule & kTmaBias) != 0
              ? tensor_map(p.bias, score_extent(p, p.bias), p.bias.row_stride == 0 ? 1 : kWarpgroupRows)
              : TensorMap{},
          splits_of(p, plan, c, context.workspace),
          list_of(p, plan, context.num_sms, context.workspace),
          reads_mask(c) ? mask_bits_map(p, mask_box_bytes(c.tile_k)) : TensorMap{},
          reads_mask(c) ? forward_mask_lists(p, plan, c, context) : MaskLists{},
          page_table(p, plan.tile_k)};
}

std::string describe(const ForwardPlan& plan) {
  const auto c = plan.launch.kernel.as<Sm90ForwardConfig>();
  return join("config     tiles of ", tile_q_of(c), " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.stages, " stages, ", c.warpgroups,
              c.warpgroups == 1 ? " consumer warpgroup" : " consumer warpgroups", " and one producer, ",
              ctas_per_sm(c) == 1 ? "" : join(ctas_per_sm(c), " CTAs per SM, "), options_text(c.options),
              packs_heads(c) ? ", heads of a group as rows" : "", has_paged_keys(c) ? ", keys by a table of pages" : "",
              "\n");
}

}  // namespace

constinit const ForwardFamily sm90_forward{
    .name = "sm90",
    .serves = serves_sm90,
    .serves_only = kServesSm90,
    .why_not = why_not,
    .plan = plan,
    .candidates = candidates,
    .limits = [](const KernelKey& kernel,
                 const Arch& arch) { return config_limits(kernel.as<Sm90ForwardConfig>(), arch); },
    .choice = [](const KernelKey& kernel) { return choice_of(kTunable, kernel.as<Sm90ForwardConfig>()); },
    .params = [](const ForwardProblem& p, const ForwardPlan& plan, const LaunchContext& context,
                 KernelParams& params) { params.set([&] { return params_of(p, plan, context); }); },
    .describe = describe,
    .kernels = kKernels,
    .reads_mask_summary = true,
};

}  // namespace cuflash::cuda
