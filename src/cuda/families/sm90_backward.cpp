// The backward kernels of sm_90a: wgmma, and TMA loads by a producer warpgroup. One kernel computes dK and dV, and adds
// dQ to sums in the workspace or leaves dQ to a second kernel. A separate kernel computes dBias.
#include <algorithm>
#include <optional>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/params_backward.h"
#include "cuda/families/registry.h"
#include "cuda/families/sm90_measured_tables.h"
#include "cuda/plan/backward_common.h"
#include "cuda/plan/key_parts.h"
#include "cuda/plan/mask_lists.h"
#include "cuda/plan/tile_order.h"
#include "cuda/plan/tuned_config.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kMain{.name = "sm90_backward",
                           .header = "sm90/backward/backward.h",
                           .config = "Sm90BackwardConfig",
                           .params = "Sm90BackwardParams",
                           .bounds = "num_threads(C), ctas_per_sm(C)",
                           .config_ints = kInts<Sm90BackwardConfig>,
                           .takes_tensor_maps = true};
constexpr KernelType kDq{.name = "sm90_dq",
                         .header = "sm90/dq/dq.h",
                         .config = "Sm90DqConfig",
                         .params = "Sm90BackwardParams",
                         .bounds = "num_threads(C), 1",
                         .config_ints = kInts<Sm90DqConfig>,
                         .takes_tensor_maps = true};
// Warps list the tiles that a mask tensor shows: the query tiles of each key tile, and the key tiles of each query
// tile.
constexpr KernelType kMaskLists{.name = "sm90_backward_mask_list",
                                .header = "sm90/lists/mask_list.h",
                                .config = "Sm90BackwardConfig",
                                .params = "Sm90BackwardParams",
                                .bounds = "kMaskListThreads",
                                .config_ints = kInts<Sm90BackwardConfig>,
                                .takes_tensor_maps = true};
constexpr KernelType kDqMaskLists{.name = "sm90_dq_mask_list",
                                  .header = "sm90/lists/mask_list.h",
                                  .config = "Sm90DqConfig",
                                  .params = "Sm90BackwardParams",
                                  .bounds = "kMaskListThreads",
                                  .config_ints = kInts<Sm90DqConfig>,
                                  .takes_tensor_maps = true};
constexpr KernelType kDbias{.name = "sm90_dbias",
                            .header = "sm90/dbias/dbias.h",
                            .config = "Sm90DbiasConfig",
                            .params = "Sm90BackwardParams",
                            .bounds = "num_threads(C), ctas_per_sm(C)",
                            .config_ints = kInts<Sm90DbiasConfig>,
                            .takes_tensor_maps = true};
constexpr const KernelType* kKernels[] = {&kMain, &kDq, &kDbias, &kMaskLists, &kDqMaskLists};

constexpr int kTileQ = 64;
constexpr int kKeyRows = 64;  // keys of a TMA box, for dQ and dBias
constexpr int64_t kLargestWithTiles = 192;
constexpr int kHalfPanel = kPanelColumns / 2;
constexpr double kMinSoftcap = 1e-10;  // times BackwardOptions::hidden_value it is still large

const char* why_not(const BackwardProblem& p, const PlanTarget&) {
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "its products take f16 and bf16 only";
  if (p.batch == 0 || p.len_q == 0 || p.len_k == 0) return "there is nothing to multiply";
  if (p.softcap > 0 && tanh_argument(p) == 0) return "softcap and scale are more than 30 orders of magnitude apart";
  if (p.softcap > 0 && p.softcap < kMinSoftcap) return "softcap is below 1e-10";
  if (p.bias && (p.bias.dtype != p.dtype || !has_tensor_map(p.bias, score_extent(p, p.bias))))
    return "bias has another type than q, or its rows do not start on 16-byte boundaries or are 2^40 bytes apart";
  if ((p.bias || p.has_mask()) && std::max(p.dim_qk, p.dim_v) > kLargestWithTiles)
    return "tiles of a bias or mask beside head sizes above 192 take more shared memory than there is";
  if (p.dout.dtype != p.dtype) return "dO has another type than q";
  if (!has_tensor_map(p.q, query_extent(p)) || !has_tensor_map(p.k, key_extent(p)) ||
      !has_tensor_map(p.v, value_extent(p)) || !has_tensor_map(p.dout, output_extent(p)))
    return "rows of q, k, v or dO do not start on 16-byte boundaries, repeat, or are 2^40 bytes apart";
  // Each packed sequence may have one more tile.
  constexpr int64_t kTooMany = int64_t{1} << 31;
  const Checked tiles = Checked(p.batch) * p.heads_q * ((p.len_q + kTileQ - 1) / kTileQ + 1);
  if (tiles.at_most(kTooMany) == kTooMany) return "there are 2^31 tiles of queries or more";
  return nullptr;
}

// Whether exponents come from dot products by a polynomial (BackwardOptions::kPolynomialSoftcap): if softcap is the
// only option, the coefficients fit into floats, and the error of an exponent, 4.5e-6 of a score, is at most 1e-4.
bool has_polynomial_softcap(const BackwardProblem& p) {
  constexpr double kMaxCap = 60;
  return p.softcap <= kMaxCap && cap_polynomial(p.scale, p.softcap).limit > 0;
}

// The options that kernels are compiled for. kScaleFirst is set if the scale is not positive, and for softcap as the
// only option in bf16 if the cap has no polynomial, because kernels with only kSoftcap require one.
int options_of(const BackwardProblem& p) {
  const int options = problem_options(p);
  const bool takes_tanh = p.dtype == DType::bf16 && options == kSoftcap && !has_polynomial_softcap(p);
  return options | (must_scale_first(p) || takes_tanh ? int{kScaleFirst} : 0);
}

// Panels are 64 columns wide. Sums of 96 columns take fewer registers than those of 128.
int panel_dim(int64_t dim) { return padded_head_size(std::max<int64_t>(dim, kPanelColumns)); }

// A separate dQ kernel computes scores and dP a second time, but adds nothing to global memory: it sums every row in
// one order, and no sums must be cleared, added to and read. On an H200 that is faster for head sizes above 128, whose
// dK and dV fill the registers, so that key tiles are small and dQ is added more often (1.01 to 1.24 of the speed of
// sums in memory). It is also faster for short causal sequences of 65 to 128 columns (1.04 at 512 keys, 0.89 at 2,048),
// where clearing and reading the sums takes a fifth of the time.
constexpr int64_t kShortCausal = 512;

// All of these options together take registers that only a kernel without dQ can spare.
constexpr int kManyOptions = kSoftcap | kAlibi | kDropout;

// Whether all tiles of the dQ kernel and of the dK and dV kernel fit on the multiprocessors at once. Then the two run
// side by side, and nothing is cleared before them or converted after them: 30 instead of 33 us for 8 heads of 512, 46
// instead of 49 for 8 of 1,024 with their queries in two parts, but 78 instead of 68 for 4 of 2,048.
bool runs_side_by_side(const BackwardProblem& p, int tile_k) {
  constexpr int64_t kShort = 1024;
  constexpr int kDqTileQ = 3 * kWarpgroupRows;
  const Checked tiles = key_tiles(p, tile_k) + Checked(p.batch) * p.heads_q * tiles_in(p.len_q, kDqTileQ);
  return p.len_q <= kShort / p.group() && tiles.at_most(kSms + 1) <= kSms;
}

// The number of keys that a query sees on average, ignoring that a window is cut at the ends of the sequence.
int64_t mean_keys(const BackwardProblem& p) {
  if (p.window_right == kUnbounded) return p.len_k;
  const int64_t causal = std::max<int64_t>(0, p.len_k - p.len_q / 2);
  return p.window_left == kUnbounded
             ? causal
             : std::min(causal, std::min(p.window_left, p.len_k) + std::min(p.window_right, p.len_k) + 1);
}

// Whether idle warps of the main kernel prepare heads. kernels/sm90/backward/deferred_prepare.h must be able to read
// the rows, and tasks must take long enough for these warps to stay ahead. On an H200, calls with 1,024 keys per query
// on average gain 2 to 4%. With 512, where all heads but the first were prepared too late, they lost 10%.
bool defers_prepare(const BackwardProblem& p, const Sm90BackwardConfig& c) {
  constexpr int64_t kEnoughKeys = 960;
  constexpr int64_t kFar = int64_t{1} << 22;  // rows of a tile are less than 2^31 bytes apart
  const auto is_simple = [&](const ConstRows& rows) {
    return rows.dtype == p.dtype && reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.row_stride >= 0 &&
           rows.row_stride < kFar && (rows.row_stride | rows.head_stride | rows.batch_stride) % 8 == 0;
  };
  return has_loader(c) && c.dq == kAddsDq && !p.packed() && !p.used_q && !p.dlse && !p.sink && p.len_q >= kTileQ &&
         p.dim_v % 8 == 0 && mean_keys(p) >= kEnoughKeys && is_simple(p.o) && is_simple(p.dout);
}

bool separates_dq(const BackwardProblem& p, int widest, int tile_k, Reproducible reproducible) {
  if (!p.dq) return false;
  if ((!p.dk && !p.dv) || widest > 128 || runs_side_by_side(p, tile_k)) return true;
  if (widest > 64 && (problem_options(p) & kManyOptions) == kManyOptions) return true;
  const bool needs_order =
      reproducible == Reproducible::yes && p.len_k > tile_k;  // a sum with a single term needs no order
  const bool causal = p.window_right < kUnbounded;
  return needs_order || (causal && widest > 64 && p.len_k <= kShortCausal);
}

// Whether every query sees a key, as far as the host knows.
bool all_queries_see_keys(const BackwardProblem& p) {
  if (p.packed() || p.used_q || p.used_k || p.has_mask()) return false;
  const int64_t shift = p.top_left ? 0 : p.len_k - p.len_q;
  return shift + p.window_right >= 0 && p.len_q - 1 + shift - p.window_left < p.len_k;
}

// Whether the main kernel can store dQ: if one key tile has all keys of a sequence, and every query tile sees it. Up to
// 64 columns are stored by a producer that computes dQ. It lacks registers beside three warpgroups with options, and
// beside two with many.
bool can_store_dq(const BackwardProblem& p, const Sm90BackwardConfig& c) {
  constexpr int kTooMany = kAlibi | kBias | kDropout;
  const bool has_registers = c.warpgroups == 1   ? true
                             : c.warpgroups == 2 ? (c.options & kTooMany) != kTooMany
                                                 : !takes_registers(c.options);
  return std::max(c.dim_qk, c.dim_v) <= kPanelColumns && p.len_k <= tile_k_of(c) && all_queries_see_keys(p) &&
         has_registers;
}

// Whether a CTA can take all key tiles of a head, so that it keeps the sums of dQ to itself: if every query sees a key,
// and if whole heads occupy the multiprocessors for hardly longer than key tiles would.
bool can_keep_dq(const BackwardProblem& p, const Sm90BackwardConfig& c) {
  constexpr double kBalanced = 0.9;
  const double slots = kSms * ctas_per_sm(c), heads = static_cast<double>(p.batch * p.heads_k);
  const double tiles = static_cast<double>(tiles_in(p.len_k, tile_k_of(c)));
  return (p.dk || p.dv) && std::max(c.dim_qk, c.dim_v) <= 128 && c.options == 0 && all_queries_see_keys(p) &&
         std::ceil(heads * tiles / slots) >= kBalanced * tiles * std::ceil(heads / slots);
}

// Whether that is the plan's choice: for up to 128 KiB of sums, which are those of 512 queries with 64 columns. With
// more, adding to dQ is faster (docs/lab/sm90_backward.md). Few heads leave room for a dQ kernel beside this one.
bool keeps_dq(const BackwardProblem& p, const Sm90BackwardConfig& c) {
  constexpr int64_t kMostBytes = 128 << 10;
  const Checked bytes = Checked(p.group()) * p.len_q * c.dim_qk * int64_t{sizeof(float)};
  return can_keep_dq(p, c) && bytes.at_most(kMostBytes + 1) <= kMostBytes && !runs_side_by_side(p, tile_k_of(c));
}

Limits main_limits(const Sm90BackwardConfig& c, const Arch& arch) {
  if (c.tile_q != kWarpgroupRows || c.warpgroups < 1 || c.warpgroups > 3 || c.stages < 2 || c.stages > 8 ||
      c.dq < kNoDq || c.dq > kKeepsDq || (c.warpgroups == 1 && c.dq == kAddsDq) ||
      (c.dq == kKeepsDq && (c.options != 0 || std::max(c.dim_qk, c.dim_v) > 128)) ||
      (c.dq == kStoresDq && std::max(c.dim_qk, c.dim_v) > kPanelColumns))
    return kNoShape;
  // A warpgroup keeps dK and dV of 64 keys, or one of the two, and S and dP, which P and dS replace.
  const int columns = split_dk_dv(c) ? std::max(c.dim_qk, c.dim_v) : c.dim_qk + c.dim_v;
  const int registers = sum_registers(Element::f32, kWarpgroupRows, columns, kWarpgroupThreads) +
                        sum_registers(Element::f32, kWarpgroupRows, 2 * c.tile_q, kWarpgroupThreads) +
                        kOtherRegisters / 2;
  return limits_with(arch.wgmma, shared_bytes(c), ctas_per_sm(c), arch, registers, consumer_registers(c));
}

// The registers of the dQ kernel hold scores, dP, and dS of half their size.
Limits dq_limits(const Sm90DqConfig& c, const Arch& arch) {
  if (c.warpgroups < 2 || c.warpgroups > 3 || c.tile_k < 16 || c.tile_k > 256 || c.key_stages < 2 || c.key_stages > 8 ||
      c.value_stages < 1 || c.value_stages > 8 || c.query_stages < 1 || c.query_stages > 2 || c.ping_pong < 0 ||
      c.ping_pong > 1)
    return kNoShape;
  const int registers = (2 * c.dim_qk + 5 * c.tile_k) / 4 + kOtherRegisters / 2;
  return limits_with(arch.wgmma && c.tile_k % 16 == 0, shared_bytes(c), 1, arch, registers, consumer_registers(c));
}

// dQ of up to 128 columns leaves registers for a third consumer warpgroup. Stages fill the remaining shared memory; K
// has more of them, because it is used twice and stays longer than V. Ping-pong gains 1 to 4% if scores are as wide as
// dQ. With 64 columns the exponentials are the bottleneck, and above 192 the registers.
Sm90DqConfig dq_config(Element element, int dim_qk, int dim_v, int options, const Arch& arch) {
  const int widest = std::max(dim_qk, dim_v);
  const int most = (options & (kBias | kMaskTensor)) != 0 ? 0 : takes_registers(options) ? 64 : 128;
  Sm90DqConfig c{element, dim_qk, dim_v, dim_qk <= most ? 3 : 2,       kKeyRows,
                 4,       4,      2,     widest > 64 && widest <= 192, options};
  const auto fits = [&] { return shared_bytes(c) <= arch.shared_per_block; };
  if (!fits()) c.query_stages = 1;
  while (!fits()) --(c.value_stages >= c.key_stages ? c.value_stages : c.key_stages);
  return c;
}

// With 128 keys, half as many rows of Q and dO are read per pair. But S, dP and the sums of dS then take 192 registers,
// which leaves too few for other options. Of short sequences one warpgroup has all queries, and two CTAs share an SM.
Sm90DbiasConfig dbias_config(const BackwardProblem& p, Element element, int options, const Arch& arch) {
  constexpr int64_t kShortQueries = kWarpgroupRows, kShortKeys = 128;
  const int dim_qk = panel_dim(p.dim_qk), dim_v = panel_dim(p.dim_v), widest = std::max(dim_qk, dim_v);
  const bool is_short = p.len_q <= kShortQueries && p.len_k <= kShortKeys && widest <= kPanelColumns;
  const bool is_large = !is_short && (options & ~kScaleFirst) == kBias && widest <= 128;
  Sm90DbiasConfig c{element, dim_qk, dim_v, is_short ? 1 : 2, is_large ? 128 : 64, 4, options};
  while (ctas_per_sm(c) * shared_bytes(c) > arch.shared_per_block) --c.stages;
  return c;
}

using Member = Tunable<Sm90BackwardConfig>::Member;
constexpr Member kMembers[] = {{&tuned::Choice::warpgroups, &Sm90BackwardConfig::warpgroups},
                               {&tuned::Choice::stages, &Sm90BackwardConfig::stages},
                               {&tuned::Choice::adds_dq, &Sm90BackwardConfig::dq}};
constexpr Tunable<Sm90BackwardConfig> kTunable{"sm90", kMembers, main_limits};

const MeasuredBackward* measured_config(int dim_qk, int dim_v, int options) {
  const auto* const found = std::find_if(
      kMeasuredBackward.begin(), kMeasuredBackward.end(),
      [&](const MeasuredBackward& t) { return t.dim_qk == dim_qk && t.dim_v == dim_v && t.options == options; });
  return found == kMeasuredBackward.end() ? nullptr : found;
}

// Applies a tuned choice. It also decides whether dQ has a separate kernel, if dK or dV are wanted, too.
bool apply_choice(const BackwardProblem& p, const PlanTarget& target, Sm90BackwardConfig& c) {
  Sm90BackwardConfig wanted = c;
  if (!apply_tuned(kTunable, target.choice, target.arch, wanted)) return false;
  if (!p.dq || !(p.dk || p.dv)) wanted.dq = c.dq;
  else if (wanted.dq != kNoDq && can_store_dq(p, wanted)) wanted.dq = kStoresDq;
  else if (wanted.dq != kNoDq && !(wanted.dq == kKeepsDq && can_keep_dq(p, wanted))) wanted.dq = kAddsDq;
  if (!is_legal(main_limits(wanted, target.arch))) return false;
  c = wanted;
  return true;
}

// The number of consumer warpgroups of 64 columns whose key tiles take the least time. Keys beyond the sequence take as
// long as others. A third warpgroup computes while the others wait (docs/lab/sm90_backward.md); of CTAs with one
// warpgroup, two share an SM. Options that change P leave no registers for three.
int warpgroups_of_64_columns(const BackwardProblem& p, int options) {
  constexpr double kTimeOfTwo = 1.28;  // per key, of that of three
  const auto keys = [&](int warpgroups) {
    const int tile_k = kWarpgroupRows * warpgroups;
    return static_cast<double>(tiles_in(p.len_k, tile_k) * tile_k);
  };
  const bool has_two = (options & (kSoftcap | kDropout)) != 0 || kTimeOfTwo * keys(2) < keys(3);
  return has_two ? 2 : 3;
}

struct Configs {
  Sm90BackwardConfig main;         // runs if dK or dV are wanted, or if it adds dQ
  std::optional<Sm90DqConfig> dq;  // the separate dQ kernel
  bool tuned;
};

// The config for sequences of up to 64 keys instead of one with more warpgroups, most of which would have no keys.
Sm90BackwardConfig with_one_warpgroup(const BackwardProblem& p, const Sm90BackwardConfig& c, const Arch& arch) {
  Sm90BackwardConfig one = c;
  one.warpgroups = 1, one.stages = 4;
  if (std::max(p.dim_qk, p.dim_v) <= kHalfPanel) one.dim_qk = one.dim_v = kHalfPanel;
  while (one.stages > 2 && main_limits(one, arch).fault == Fault::crowded) --one.stages;
  return can_store_dq(p, one) && main_limits(one, arch).fault == Fault::none ? one : c;
}

Configs configs_for(const BackwardProblem& p, const PlanTarget& target) {
  const Element element = element_of(p.dtype);
  const int dim_qk = panel_dim(p.dim_qk), dim_v = panel_dim(p.dim_v);
  // dK and dV of 64 columns leave registers for a third warpgroup, whose products run while the others wait. More than
  // 128 columns of either fill all registers of a warpgroup.
  const int options = options_of(p);
  const bool narrow = dim_qk == 64 && dim_v == 64, wide = dim_qk > 128 || dim_v > 128;
  const MeasuredBackward* measured = measured_config(dim_qk, dim_v, options);
  const int warpgroups = measured ? measured->warpgroups : narrow ? warpgroups_of_64_columns(p, options) : wide ? 1 : 2;
  const auto config = [&](bool adds) {
    Sm90BackwardConfig c{element, dim_qk, dim_v, kTileQ, warpgroups, 4, adds ? kAddsDq : kNoDq, options};
    if (adds && can_store_dq(p, c)) c.dq = kStoresDq;
    else if (adds && keeps_dq(p, c)) c.dq = kKeepsDq;
    if (measured && adds == (measured->adds_dq != 0)) c.stages = measured->stages;
    else if (wide) c.stages = 2;
    else if (adds && !narrow && !has_loader(c)) c.stages = 3;
    while (c.stages > 2 && shared_bytes(c) > target.arch.shared_per_block) --c.stages;
    return c;
  };
  // Of many full heads with 128 columns, a dQ kernel is faster than sums that are kept for a second key tile: 1.05 for
  // 512 heads of 256 keys, but 0.93 for 128 heads, and 0.92 with 96 columns. Bias tiles together with mask tiles leave
  // no shared memory for the tiles that dQ needs.
  constexpr int64_t kManyHeads = 3 * kSms;
  const bool is_full = p.window_right == kUnbounded && p.len_k > kWarpgroupRows * warpgroups;
  const bool can_keep = p.dq && config(true).dq == kKeepsDq;
  const bool keeps = can_keep && !(is_full && dim_qk == 128 && p.batch * p.heads_k >= kManyHeads);
  const bool separate =
      !keeps &&
      (can_keep || separates_dq(p, std::max(dim_qk, dim_v), kWarpgroupRows * warpgroups, target.reproducible) ||
       (p.dq && measured && measured->adds_dq == 0) ||
       (p.dq && !wide && shared_bytes(config(true)) > target.arch.shared_per_block));
  Configs configs{config(p.dq && !separate), {}, false};
  if (configs.main.dq == kStoresDq && !measured) configs.main = with_one_warpgroup(p, configs.main, target.arch);
  configs.tuned = apply_choice(p, target, configs.main);
  if (p.dq && !configs.main.dq) configs.dq = dq_config(element, dim_qk, dim_v, options, target.arch);
  return configs;
}

// The tasks of dBias: tiles of the bias or, if tiles are few, parts of the (batch, head) pairs that share a tile.
struct DbiasTasks {
  Sm90DbiasConfig config;
  int64_t tiles;
  int parts;
};

// The tasks of the dBias kernel, or nothing if the portable kernel must compute dBias. That kernel counts tiles if no
// other kernel runs.
std::optional<DbiasTasks> dbias_tasks(const BackwardProblem& p, const Sm90BackwardConfig& c, const Arch& arch) {
  constexpr int64_t kTooMany = int64_t{1} << 31;
  if (!p.dbias) return std::nullopt;
  const Sm90DbiasConfig config = dbias_config(p, c.element, c.options, arch);
  const Checked of_head = Checked(tiles_in(p.bias_len_q, tile_q_of(config))) * tiles_in(p.bias_len_k, config.tile_k);
  const int64_t tiles = (of_head * p.bias_batch * p.bias_heads).at_most(kTooMany);
  if (tiles == kTooMany) return std::nullopt;
  // A part for every CTA if all tiles take equally long and divide the CTAs well, otherwise two.
  constexpr int64_t kFewTiles = 8;
  const int64_t slots = kSms * ctas_per_sm(config);
  const int64_t wanted = of_head.at_most(2) == 1 && slots >= kFewTiles * tiles ? slots : 2 * slots;
  const int64_t shared =
      (Checked(p.bias_batch == 1 ? p.batch : 1) * (p.bias_heads == 1 ? p.heads_q : 1)).at_most(wanted);
  return DbiasTasks{config, tiles,
                    static_cast<int>(std::clamp<int64_t>(wanted / std::max<int64_t>(tiles, 1), 1, shared))};
}

const char* reason_of(const Configs& configs, bool runs_main) {
  if (configs.tuned && runs_main) return kTunedReason;
  if (configs.dq && runs_main) return "wgmma products and TMA loads; dQ in one order, by a kernel of its own";
  if (configs.dq) return "wgmma products and TMA loads; dQ alone";
  return configs.main.dq ? "wgmma products and TMA loads" : "wgmma products and TMA loads; no dQ";
}

MaskListExtent query_lists(const BackwardProblem& p, int tile_k) {
  return {p.heads_k, tiles_in(p.len_k, tile_k), tiles_in(p.len_q, kTileQ)};
}
MaskListExtent key_lists(const BackwardProblem& p, int tile_q, int tile_k) {
  return {p.heads_q, tiles_in(p.len_q, tile_q), tiles_in(p.len_k, tile_k)};
}
// Plans the kernels that make lists. Their configs have only the fields that the lists depend on.
void plan_mask(BackwardPlan& plan, const BackwardProblem& p, const Sm90BackwardConfig& main,
               const std::optional<Sm90DqConfig>& dq, const Arch& arch) {
  BackwardWorkspace& w = plan.workspace;
  const auto take = [&](size_t& part, const MaskListExtent& extent) {
    part = (w.size + 63) / 64 * 64;
    w.size = part + mask_list_bytes(p, extent);
  };
  if (plan.main.grid_x != 0) {
    const Sm90BackwardConfig c{Element::bf16, 0, 0, kTileQ, main.warpgroups, 0, 0, 0};
    plan.mask_lists = plan_mask_lists(key_of(kMaskLists, arch, c), p, query_lists(p, tile_k_of(main)));
    take(w.mask_lists, query_lists(p, tile_k_of(main)));
  }
  if (dq) {
    const Sm90DqConfig c{Element::bf16, 0, 0, dq->warpgroups, dq->tile_k, 0, 0, 0, 0, 0};
    plan.dq_mask_lists = plan_mask_lists(key_of(kDqMaskLists, arch, c), p, key_lists(p, tile_q_of(*dq), dq->tile_k));
    take(w.dq_mask_lists, key_lists(p, tile_q_of(*dq), dq->tile_k));
  }
}

BackwardPlan plan(const BackwardProblem& p, const PlanTarget& target) {
  const Arch& arch = target.arch;
  const Configs configs = configs_for(p, target);
  const Sm90BackwardConfig& c = configs.main;
  const bool runs_main = c.dq || p.dk || p.dv;
  const bool divides = runs_main && c.dq != kKeepsDq && !(configs.dq && runs_side_by_side(p, tile_k_of(c)));
  const int64_t keeping_ctas = keeps_dq(c) ? (Checked(p.batch) * p.heads_k).at_most(kSms * ctas_per_sm(c)) : 0;
  const MainKernel kernel{.config = portable_view(c), .sums_dq = c.dq == kAddsDq, .claims_late = has_loader(c)};
  const KeyParts parts = divides ? key_parts(p, kernel, target.reproducible) : KeyParts{};
  const std::optional<DbiasTasks> dbias = runs_main || configs.dq ? dbias_tasks(p, c, arch) : std::nullopt;
  Sums sums{.dq = c.dq == kAddsDq,
            .keeping_ctas = keeping_ctas,
            .parts = parts,
            .lists_keys = runs_main,
            .claims_ahead = runs_main && !has_loader(c) && c.dq != kKeepsDq,
            .counts_tasks = has_loader(c),
            .defers_prepare = defers_prepare(p, c),
            .dbias = dbias.has_value()};
  if (dbias && dbias->parts > 1) {
    sums.dbias_counts = dbias->tiles;
    sums.dbias_sums = dbias->tiles * dbias->parts * tile_q_of(dbias->config) * dbias->config.tile_k;
  }
  BackwardPlan plan = plan_around(p, arch, portable_view(c), sums);
  plan.family = &sm90_backward;
  plan.tuned = configs.tuned && runs_main;
  plan.reason = reason_of(configs, runs_main);
  const Checked tiles = p.packed() ? Checked(plan.workspace.listed_tiles) * p.heads_k : key_tiles(p, tile_k_of(c));
  plan.main = launch_of(key_of(kMain, arch, c),
                        !runs_main     ? Checked(0)
                        : keeping_ctas ? keeping_ctas
                                       : tiles * parts.count(),
                        num_threads(c), shared_bytes(c));
  plan.main.persistent = plan.main.programmatic = runs_main, plan.main.ctas_per_sm = ctas_per_sm(c);
  plan.finish.programmatic = plan.finish.grid_x != 0 && !configs.dq;
  if (dbias) {
    plan.bias = launch_of(key_of(kDbias, arch, dbias->config), dbias->tiles * dbias->parts, num_threads(dbias->config),
                          shared_bytes(dbias->config));
    plan.bias.persistent = true, plan.bias.ctas_per_sm = ctas_per_sm(dbias->config);
    plan.dbias_parts = dbias->parts;
  } else if (p.dbias) {
    plan.bias = bias_launch(p, arch, kTileQ);
  }
  if (configs.dq) {
    const Sm90DqConfig& dq = *configs.dq;
    const Checked tiles = Checked(p.batch) * p.heads_q * tiles_in(p.len_q, tile_q_of(dq));
    plan.dq = launch_of(key_of(kDq, arch, dq), tiles, num_threads(dq), shared_bytes(dq));
    plan.dq.persistent = plan.dq.programmatic = true;
    plan.dq_tile_q = tile_q_of(dq), plan.dq_tile_k = dq.tile_k;
    if (!runs_main) plan.tile_k = dq.tile_k;
  }
  if (reads_mask(c)) plan_mask(plan, p, c, configs.dq, arch);
  return plan;
}

std::vector<Alternatives> candidates(const BackwardProblem& p, const BackwardPlan& plan, const Arch& arch) {
  auto c = plan.main.kernel.as<Sm90BackwardConfig>();
  std::vector<Alternatives> all;
  for (const int warpgroups : {1, 2, 3}) {
    Alternatives without_dq;  // configs without dQ, with as many stages as fit
    for (const int stages : {4, 3, 2}) {
      c.warpgroups = warpgroups, c.stages = stages, c.dq = warpgroups == 1 ? kStoresDq : kAddsDq;
      if (can_store_dq(p, c)) c.dq = kStoresDq;
      if (warpgroups > 1 || can_store_dq(p, c)) all.push_back({key_of(kMain, arch, c)});
      c.dq = kKeepsDq;
      if (can_keep_dq(p, c)) all.push_back({key_of(kMain, arch, c)});
      c.dq = kNoDq;
      without_dq.push_back(key_of(kMain, arch, c));
    }
    all.push_back(without_dq);
  }
  return all;
}

Limits dbias_limits(const Sm90DbiasConfig& c, const Arch& arch) {
  if ((c.tile_k != 64 && c.tile_k != 128) || c.warpgroups < 1 || c.warpgroups > 2 || c.stages < 2 || c.stages > 8)
    return kNoShape;
  const int registers = 3 * c.tile_k / 2 + kOtherRegisters / 2;
  return limits_with(arch.wgmma, shared_bytes(c), ctas_per_sm(c), arch, registers, consumer_registers(c));
}

Limits limits(const KernelKey& kernel, const Arch& arch) {
  if (kernel.type == &kDbias) return dbias_limits(kernel.as<Sm90DbiasConfig>(), arch);
  return kernel.type == &kDq ? dq_limits(kernel.as<Sm90DqConfig>(), arch)
                             : main_limits(kernel.as<Sm90BackwardConfig>(), arch);
}

Sm90BackwardParams params_of(const BackwardProblem& p, const BackwardPlan& plan, const LaunchContext& context) {
  const bool runs_main = plan.main.grid_x != 0, runs_dq = plan.dq.grid_x != 0;
  const bool by_queries = runs_dq || plan.bias.kernel.type == &kDbias;
  const auto* row_stats = static_cast<std::byte*>(context.workspace) + plan.workspace.row_stats;
  const auto keys = [&](bool used, int rows) { return used ? tensor_map(p.k, key_extent(p), rows) : TensorMap{}; };
  const auto terms = [&](const ConstRows& rows) {
    return rows ? tensor_map(rows, score_extent(p, rows), rows.row_stride == 0 ? 1 : kTileQ) : TensorMap{};
  };
  const auto values = [&](bool used, int rows) { return used ? tensor_map(p.v, value_extent(p), rows) : TensorMap{}; };
  BackwardParams backward = backward_params(p, plan, context.workspace, context.tile_counts);
  const int64_t ctas = grid_of(plan.main, context.num_sms);
  backward.first_ticket = static_cast<uint64>(plan.pairs_tasks ? 2 * ctas : ctas);
  if (plan.pairs_tasks) backward.last_paired_task = 2 * ctas - 1;
  const auto part = [&](size_t offset) { return static_cast<std::byte*>(context.workspace) + offset; };
  if (p.has_mask() && runs_main)
    backward.mask_lists = mask_lists(p, query_lists(p, plan.tile_k), part(plan.workspace.mask_lists));
  const CapDerivative cap = p.softcap > 0 ? cap_derivative(p.scale, p.softcap) : CapDerivative{};
  return {backward,
          static_cast<float>(p.scale * kLog2e),
          {static_cast<float>(1 / (p.scale * kLog2e)), static_cast<float>(p.softcap * kLog2e),
           static_cast<float>(1 / (1 - p.dropout.p)), cap},
          tensor_map(p.q, query_extent(p), plan.tile_q),
          keys(runs_main, plan.tile_k),
          values(runs_main, plan.tile_k),
          tensor_map(p.dout, output_extent(p), plan.tile_q),
          tensor_map(reinterpret_cast<const float*>(row_stats), plan.workspace.tiles,
                     row_stats_size(portable_view(plan.main.kernel.as<Sm90BackwardConfig>()))),
          terms(p.bias),
          p.has_mask() ? mask_bits_map(p) : TensorMap{},
          keys(by_queries, kKeyRows),
          values(by_queries, kKeyRows),
          runs_dq ? tile_order(p, plan.dq_tile_q, grid_of(plan.dq, context.num_sms)) : TileOrder{},
          runs_dq && !runs_main,
          p.has_mask() && runs_dq
              ? mask_lists(p, key_lists(p, plan.dq_tile_q, plan.dq_tile_k), part(plan.workspace.dq_mask_lists))
              : MaskLists{}};
}

std::string consumers_text(int warpgroups) {
  return join(warpgroups, warpgroups == 1 ? " consumer warpgroup" : " consumer warpgroups");
}

std::string main_line(const Sm90BackwardConfig& c) {
  return join("config     tiles of ", c.tile_q, " queries x ", tile_k_of(c), " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.stages, " stages, ", consumers_text(c.warpgroups),
              has_loader(c)     ? ", one for dQ, and one producer, "
              : stores_dq(c)    ? " and one producer that also computes and stores dQ, "
              : c.dq == kAddsDq ? " and one producer that also computes dQ, "
                                : " and one producer, ",
              ctas_per_sm(c) == 1 ? "" : join(ctas_per_sm(c), " CTAs per SM, "), options_text(c.options), "\n");
}

std::string dq_line(const Sm90DqConfig& c) {
  return join("config     dQ: tiles of ", tile_q_of(c), " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.key_stages, " tiles of keys and ", c.value_stages, " of values, ", c.warpgroups,
              " consumer warpgroups and one producer, ", options_text(c.options), "\n");
}

std::string dbias_line(const BackwardPlan& plan) {
  const auto c = plan.bias.kernel.as<Sm90DbiasConfig>();
  return join("config     dBias: tiles of ", tile_q_of(c), " queries x ", c.tile_k, " keys, head sizes up to ",
              c.dim_qk, " and ", c.dim_v, ", ", c.stages, " stages, ", consumers_text(c.warpgroups),
              " and one producer, ", options_text(c.options),
              plan.dbias_parts > 1 ? join("; ", plan.dbias_parts, " tasks per tile, added up in order") : "", "\n");
}

std::string parts_line(const BackwardPlan& plan) {
  const KeyParts& parts = plan.parts;
  if (parts.count() == 1) return "";
  return join("parts      ", parts.count(), " tasks per key tile: the query heads of a group in ", parts.heads,
              ", the queries in ", parts.queries, "; dK and dV are ", parts.own_sums ? "added up in order from " : "",
              "f32 sums of ", plan.workspace.sums_end() - plan.workspace.dk_accum, " bytes in the workspace\n");
}

std::string describe(const BackwardPlan& plan) {
  const bool dq = plan.dq.grid_x != 0, main = !dq || plan.main.grid_x != 0;
  return join(
      main ? main_line(plan.main.kernel.as<Sm90BackwardConfig>()) : "", parts_line(plan),
      plan.workspace.kept_dq != 0 ? "heads      a CTA takes all key tiles of a head and keeps its sums of dQ\n" : "",
      dq ? dq_line(plan.dq.kernel.as<Sm90DqConfig>()) : "", plan.bias.kernel.type == &kDbias ? dbias_line(plan) : "");
}

}  // namespace

constinit const BackwardFamily sm90_backward{
    .name = "sm90",
    .serves = serves_sm90,
    .serves_only = kServesSm90,
    .why_not = why_not,
    .plan = plan,
    .candidates = candidates,
    .limits = limits,
    .choice = [](const KernelKey& kernel) { return choice_of(kTunable, kernel.as<Sm90BackwardConfig>()); },
    .params =
        [](const BackwardProblem& p, const BackwardPlan& plan, const LaunchContext& context, KernelParams& params) {
          // The portable kernels before and after the main one read the first part of the struct.
          static_assert(offsetof(Sm90BackwardParams, backward) == 0);
          params.set([&] { return params_of(p, plan, context); }, sizeof(BackwardParams));
        },
    .describe = describe,
    .kernels = kKernels,
    .reads_mask_summary = true,
};

}  // namespace cuflash::cuda
