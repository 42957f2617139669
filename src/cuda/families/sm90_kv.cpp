// The kernel of sm_90a over a KV cache: a producer warp loads keys and values by TMA, and large row tiles are
// multiplied by wgmma.
#include <algorithm>
#include <bit>

#include "cuda/families/kv_common.h"
#include "cuda/families/params_kv.h"
#include "cuda/families/registry.h"
#include "kv/geometry.h"
#include "kv/ticket.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kKernel{.name = "sm90_kv",
                             .header = "kv/sm90_attention.h",
                             .config = "KvConfig",
                             .params = "Sm90KvParams",
                             .bounds = "num_threads(C), C.ctas_per_sm",
                             .config_ints = kInts<KvConfig>,
                             .takes_tensor_maps = true};
constexpr const KernelType* kKernels[] = {&kKernel};
constexpr int kMaxStages = 4, kMaxSingleCtaStages = 8;

// The warps of these tiles are consumers; there is one more warp, the producer.
constexpr KvTiles kTiles[] = {
    {128, 256, 64, 8, 1, 1, 1},              // wgmma: see is_worth_warpgroups
    {128, 128, 64, 8, 1, 1, 1},              //
    {128, 16, 64, 1, 4, 1, 1, false, true},  //
    {128, 32, 64, 2, 4, 1, 1, false, true},  //
    {64, 16, 128, 1, 4, 1, 2, true},         //
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
// TMA boxes hold whole panels of columns.
int boxed_dim(int64_t dim) { return padded_head_size((dim + kPanelColumns - 1) / kPanelColumns * kPanelColumns); }
// Rows of a TMA box: the largest of these that divides the key tile and the page. Without pages a key tile is one box.
constexpr int64_t kBoxRows[] = {128, 64, 32, 16};
int64_t box_rows_of(const CacheProblem& p, const KvConfig& c) {
  return *std::find_if(std::begin(kBoxRows), std::end(kBoxRows),
                       [&](int64_t rows) { return c.tile_k % rows == 0 && p.cache.page_size % rows == 0; });
}

const char* why_not(const CacheProblem& p, const PlanTarget&) {
  if (size_of(element_of(p.dtype)) != 2) return "its TMA loads take f16 and bf16 only";
  if (!has_tensor_map(p.k, cached_extent(p, p.dim_qk)) || !has_tensor_map(p.v, cached_extent(p, p.dim_v)))
    return "TMA loads need a cache whose rows start on 16-byte boundaries";
  if (p.cache.page_size % kBoxRows[std::size(kBoxRows) - 1] != 0)
    return "TMA loads need pages whose size is a multiple of 16";
  if (p.cache.page_size != 0 && p.cache.leftpad) return "left padding moves keys across the borders of pages";
  // Products read two adjacent pieces of a box; after its last column, another tile follows in shared memory.
  if (p.v_in_k && (column_of_values(p) % 16 != 0 || column_of_values(p) + boxed_dim(p.dim_v) > boxed_dim(p.dim_qk)))
    return "v is a slice of k that does not lie in a TMA box as products read it";
  return nullptr;
}

// Whether there are so few row tiles that one CTA per SM is enough, even if long sequences are split. Such a CTA has
// all shared memory of its SM, and most of its keys are in flight before its queries have arrived. The usual board
// decides, so that the kernel depends only on the architecture.
bool suits_single_cta_per_sm(const CacheProblem& p, const KvTiles& t, const Arch& arch) {
  const int64_t tiles = row_tiles(p, t.tile_q);
  return p.num_splits == 0 && (kMaxCuts * tiles <= arch.usual_sms ||
                               fills_once(tiles, max_key_tiles(p, t.tile_q, t.tile_k), arch.usual_sms));
}

// Whether to use wgmma and large row tiles. These read their keys once, but one CTA adds up all splits of such a tile,
// and with few tiles there are many splits. With a fixed number of splits, the batch must not decide.
bool is_worth_warpgroups(const CacheProblem& p, const KvTiles& t, const Arch& arch) {
  return p.num_splits == 0 && 2 * row_tiles(p, t.tile_q) >= arch.usual_sms;
}

// Limits of configs with wgmma. Only one block of rows at a time has scores, and probabilities of half their size.
Limits wgmma_limits(const KvConfig& c, const Arch& arch) {
  constexpr int kWarps = 2 * kWarpgroupThreads / 32;
  const bool shape = arch.wgmma && c.row_warps == kWarps && c.key_warps == 1 && c.column_warps == 1 && c.tile_k >= 32 &&
                     c.tile_k <= 128 && std::max(c.dim_qk, c.dim_v) <= 128 && !c.v_in_k && c.ctas_per_sm == 1;
  const int registers = sum_registers(c.element, 16 * row_blocks(c), c.dim_v) +
                        sum_registers(c.element, 16, c.tile_k) * 3 / 2 + kOtherRegisters;
  const int most = uses_setmaxnreg(c) ? consumer_registers(c) : registers_of(num_threads(c), 1);
  return limits_with(shape, shared_bytes(c), c.ctas_per_sm, arch, registers, most);
}

Limits config_limits(const KvConfig& c, const Arch& arch) {
  if (!has_legal_sizes(c)) return kNoShape;
  return by_warpgroups(c) ? wgmma_limits(c, arch) : mma_limits(c, arch);
}

constexpr Tunable<KvConfig> kTunable{"sm90", kKvMembers, config_limits};

// Plans the splits whose first tile the producer prefetches before it knows any length: those that are used whenever
// there are keys for them, provided that keys begin with the first row. If all CTAs start at once, that hides the time
// until the work is known; if others follow, it saves nothing, and has been seen to cost up to 2%. Without splits, two
// tiles are loaded; with few splits, the second tile belongs to another split.
void plan_prefetch(KvPlan& plan, const CacheProblem& p, const KvConfig& c) {
  const bool from_first_row = !p.cache.leftpad && p.window_left >= p.len_k && p.len_k > 0;
  if (!from_first_row || !plan.all_resident) return;
  plan.prefetched_splits = plan.base_splits;
  plan.prefetched_tiles = plan.splits == 1 && p.len_k > c.tile_k ? 2 : 1;
}

// How many parts of tiles, keys or values, a CTA keeps in flight. Memory is busy with 44 KiB per SM in flight, while
// one more part is in use and the next one is requested. With more, some requests are served long before others, and
// reads evict more dirty lines from L2. Measured: docs/lab/kv.md.
int64_t parts_in_flight(const KvPlan& plan, const KvConfig& c) {
  constexpr int64_t kBytes = 44 << 10;
  const int64_t parts = parts_of_tile(c), all = parts * c.stages, bytes = stage_bytes(c) / parts;
  if (plan.box_rows != c.tile_k || c.ctas_per_sm != 1 || by_warpgroups(c)) return all;
  return std::min(all, std::max(parts * plan.prefetched_tiles, 1 + (kBytes + bytes - 1) / bytes));
}

// Whether splits exchange their partial sums (kernels/kv/exchange.h), for which all CTAs must be resident. Every warp
// adds up some segments of the rows, one after the other; with many rows and few splits there are so many that tickets
// are faster (docs/lab/kv.md).
bool is_worth_exchange(const KvPlan& plan, const KvConfig& c) {
  constexpr int64_t kMaxUnits = 4;  // segments per warp
  if (!c.fast_decode || !plan.all_resident || plan.splits == 1 || c.ctas_per_sm != 1) return false;
  return plan.state_rows * (c.dim_v / kExchangeColumns) <= kMaxUnits * plan.splits * (num_threads(c) / 32);
}

KvPlan plan(const CacheProblem& p, const PlanTarget& target) {
  const Arch& arch = target.arch;
  KvConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = boxed_dim(p.dim_qk), c.dim_v = boxed_dim(p.dim_v);
  c.v_in_k = p.v_in_k;
  c.copy = kCopyTma;
  c.options = kv_options(p, c.copy);
  KvPlan plan;
  plan.family = &sm90_kv;
  plan.tuned = apply_tuned(kTunable, target.choice, arch, c);
  if (!plan.tuned)
    choose_tiles(
        c, p, arch, kTiles,
        [&](const KvTiles& t, const KvConfig& tiled) {
          if (t.single_cta_per_sm && !suits_single_cta_per_sm(p, t, arch)) return false;
          return !by_warpgroups(tiled) || (!tiled.v_in_k && is_worth_warpgroups(p, t, arch));
        },
        // More stages than usual if no other CTA would share the SM anyway.
        [](const KvTiles& t, const KvConfig& tiled) {
          return t.single_cta_per_sm || by_warpgroups(tiled) ? kMaxSingleCtaStages : kMaxStages;
        });
  plan.box_rows = box_rows_of(p, c);
  // Calls with many queries take long anyway; a fixed number of splits promises the same bits for a row in any call.
  c.fast_decode = !by_warpgroups(c) && p.num_splits == 0 && is_fast_decode(p) ? (p.cache ? 1 : kWholeCache) : 0;
  plan_splits(plan, p, c, target, ShortSplits::yes);
  c.l2_exchange = target.reduction == SplitReduction::exchange && is_worth_exchange(plan, c);
  plan_prefetch(plan, p, c);
  plan.loads_in_flight = parts_in_flight(plan, c);
  plan_launch(plan, p, kKernel, c, arch);
  if (c.fast_decode && plan.launch.grid_x != 0) {
    plan.launch.grid_x = static_cast<uint32_t>(p.heads_k * plan.row_tiles);
    plan.launch.grid_y = static_cast<uint32_t>(p.batch), plan.launch.grid_z = static_cast<uint32_t>(plan.splits);
  }
  plan.launch.programmatic = true, plan.launch.cooperative = c.l2_exchange != 0;
  return plan;
}

PrologueLoads prologue_loads(const CacheProblem& p, const KvPlan& plan) {
  PrologueLoads f{};
  const CachedKeys& c = p.cache;
  f.rows = c.rows;
  if (c.page_size != 0) f.table = c.table, f.table_stride = c.table_stride, f.page_size = as_int(c.page_size);
  else if (c.entry) f.table = c.entry, f.table_stride = 1, f.page_size = as_int(std::max<int64_t>(1, p.len_k));
  const auto by = [](int64_t n) { return divisor(static_cast<unsigned>(std::max<int64_t>(1, n))); };
  f.by_page_size = by(f.page_size);
  f.last_row = as_int(std::max<int64_t>(1, p.len_k) - 1), f.last_entry = as_int(std::max<int64_t>(1, c.entries) - 1);
  f.row_tiles = static_cast<int>(plan.row_tiles), f.by_row_tiles = by(plan.row_tiles);
  f.splits = static_cast<short>(plan.prefetched_splits), f.tiles = static_cast<unsigned char>(plan.prefetched_tiles);
  f.box_bits = static_cast<unsigned char>(std::countr_zero(static_cast<unsigned>(plan.tile_k / plan.box_rows)));
  f.k_head = p.k.head_stride != 0, f.k_entry = p.k.batch_stride != 0;
  f.v_head = p.v.head_stride != 0, f.v_entry = p.v.batch_stride != 0;
  return f;
}

Sm90KvParams params_of(const CacheProblem& p, const KvPlan& plan, const LaunchContext& context) {
  // A call counts as long, for the L2 policy, if more CTAs follow the first wave, or if the first wave reads four times
  // the size of L2: on an H200 with head sizes of 128, 132 x 48 x 32 KiB.
  constexpr int kManyTiles = 48;
  const int rows = static_cast<int>(plan.box_rows);
  return {tensor_map(p.k, cached_extent(p, p.dim_qk), rows),
          tensor_map(p.v, cached_extent(p, p.dim_v), rows),
          prologue_loads(p, plan),
          kv_params(p, plan, context.workspace, context.tile_counts),
          static_cast<int>(plan.first_wave_ctas),
          plan.all_resident ? kManyTiles / plan.launch.kernel.as<KvConfig>().ctas_per_sm : 0,
          static_cast<int>(plan.loads_in_flight)};
}

}  // namespace

// The grid of such a call has three dimensions, whose limits are 2^31 - 1 and twice 2^16 - 1.
bool is_fast_decode(const CacheProblem& p) {
  constexpr int64_t kMaxTiles = (int64_t{1} << 31) / kMaxSplits, kMaxSequences = (1 << 16) - 1;
  const bool whole = !p.packed() && !p.used_q && !p.cache.leftpad && p.cache.len_new == 0 && !p.rotary.cos;
  const bool aligned = has_vector_rows(p.q) && p.dim_qk % 8 == 0 && has_vector_rows(p.o) && p.dim_v % 8 == 0;
  return whole && aligned && p.o.dtype == p.dtype && row_tiles(p, 16) <= kMaxTiles && p.batch <= kMaxSequences;
}

constinit const KvFamily sm90_kv{
    .name = "sm90",
    .serves = serves_sm90,
    .serves_only = kServesSm90,
    .why_not = why_not,
    .plan = plan,
    .candidates = [](const CacheProblem& p, const KvPlan& plan,
                     const Arch& arch) { return kv_candidates(kKernel, p, plan, arch); },
    .limits = [](const KernelKey& kernel, const Arch& arch) { return config_limits(kernel.as<KvConfig>(), arch); },
    .choice = [](const KernelKey& kernel) { return choice_of(kTunable, kernel.as<KvConfig>()); },
    .params = [](const CacheProblem& p, const KvPlan& plan, const LaunchContext& context,
                 KernelParams& params) { params.set([&] { return params_of(p, plan, context); }); },
    .describe =
        [](const KvPlan& plan) {
          return kv_config_line(plan.launch.kernel.as<KvConfig>(), "by TMA from a producer warp");
        },
    .kernels = kKernels,
};

}  // namespace cuflash::cuda
