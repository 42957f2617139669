// The forward kernel of sm_90a: wgmma, and TMA loads by a producer warpgroup.
//
// Every config of the table compiles without spills for every load it is listed for (tests/cuda/cuda_kernels_test).
// Those without options were measured on an H200 (docs/lab/sm90_forward.md); cuflash tune measures them again.
#include <algorithm>
#include <bit>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/params_forward.h"
#include "cuda/families/registry.h"
#include "cuda/plan/plan_common.h"
#include "cuda/plan/tile_order.h"
#include "cuda/plan/tuned_config.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kKernel{.name = "sm90_forward",
                             .header = "sm90/forward.h",
                             .config = "Sm90ForwardConfig",
                             .params = "Sm90ForwardParams",
                             .bounds = "num_threads(C), 1",
                             .config_ints = kInts<Sm90ForwardConfig>,
                             .takes_tensor_maps = true};
constexpr const KernelType* kKernels[] = {&kKernel};

// Whether the last keys are hidden from the first queries.
enum Shape { full = 1, causal = 2, either = full | causal };

struct Tiles {
  int largest_qk, largest_v;
  Shape shape;
  int64_t longest_q;
  int warpgroups, tile_k, stages;
  Load most;
  int schedule = kPingPong | kPinWait;
};
using enum Load;
constexpr int64_t kAny = kUnbounded;
constexpr int kStaged = kPingPong | kPinWait | kStoreBySmem, kPrefetched = kStaged | kPrefetchQ;

// The first that fits is taken. Short and causal problems have smaller tiles: fewer rows of the last tile are empty,
// and fewer pairs on the diagonal are hidden.
constexpr Tiles kTiles[] = {
    {64, 64, full, 512, 4, 64, 4, partial_rows, kPrefetched & ~kPingPong},     //
    {64, 64, full, 2048, 4, 64, 4, partial_rows, kStaged},                     //
    {64, 64, causal, 2048, 4, 64, 4, partial_rows, kPrefetched & ~kPingPong},  //
    {64, 64, causal, 4096, 4, 64, 4, partial_rows, kStaged},                   //
    {64, 64, either, kAny, 3, 128, 4, partial_rows},                           //
    {96, 96, either, kAny, 3, 96, 3, partial_rows},                            //
    {128, 128, full, 1024, 2, 128, 2, partial_rows, kStaged},                  //
    {128, 128, causal, 1024, 2, 128, 2, partial_rows, kPrefetched},            //
    {128, 128, causal, 2048, 3, 64, 2, partial_rows, kPrefetched},             //
    {128, 128, causal, 4096, 2, 128, 2, partial_rows, kPrefetched},            //
    {128, 128, either, kAny, 3, 80, 4, partial_rows},                          //
    {192, 128, either, kAny, 2, 128, 2, partial_rows},                         //
    {192, 192, either, kAny, 2, 112, 2, partial_rows},                         //
    {256, 256, full, 4096, 2, 64, 2, partial_rows, kStaged},                   //
    {256, 256, causal, 8192, 2, 64, 2, partial_rows, kStaged},                 //
    {256, 256, either, kAny, 2, 80, 2, partial_rows},                          //
    {128, 128, either, kAny, 2, 64, 3, one_option},                            //
    {256, 256, either, kAny, 2, 48, 2, one_option},                            //
    {128, 128, either, kAny, 2, 32, 4, every_option},                          //
    {192, 192, either, kAny, 2, 32, 3, every_option},                          //
};

// Panels are 64 columns wide.
int panel_dim(int64_t dim) { return padded_head_size(std::max<int64_t>(dim, kPanelColumns)); }

Load load_of(int options) {
  if (options == 0) return partial_rows;
  return std::has_single_bit(static_cast<unsigned>(options)) ? one_option : every_option;
}

Sm90ForwardConfig config_without_tiles(const ForwardProblem& p) {
  Sm90ForwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = panel_dim(p.dim_qk), c.dim_v = panel_dim(p.dim_v);
  c.options = problem_options(p);
  return c;
}

// Null: no tiles fit.
const Tiles* tiles_for(const ForwardProblem& p, const Sm90ForwardConfig& c) {
  const Shape shape = p.window_right < kUnbounded ? causal : full;
  const auto* found = std::find_if(std::begin(kTiles), std::end(kTiles), [&](const Tiles& t) {
    return c.dim_qk <= t.largest_qk && c.dim_v <= t.largest_v && (t.shape & shape) != 0 && p.len_q <= t.longest_q &&
           load_of(c.options) <= t.most;
  });
  return found == std::end(kTiles) ? nullptr : found;
}

Checked query_tiles(const Problem& p, int tile_q) {
  return Checked(p.batch) * p.heads_q * ((p.len_q + tile_q - 1) / tile_q);
}

const char* why_not(const ForwardProblem& p) {
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "its products take f16 and bf16 only";
  if (p.batch == 0 || p.len_q == 0 || p.len_k == 0) return "there is nothing to multiply";
  if (!has_vector_rows(p.q) || !has_vector_rows(p.k) || !has_vector_rows(p.v))
    return "rows of q, k or v do not start on 16-byte boundaries";
  if (!has_tensor_map(p.q, query_extent(p)) || !has_tensor_map(p.k, key_extent(p)) ||
      !has_tensor_map(p.v, value_extent(p)))
    return "rows of q, k or v repeat, or are 2^40 bytes apart";
  constexpr int64_t kTooMany = int64_t{1} << 31;
  if (query_tiles(p, kWarpgroupRows).at_most(kTooMany) == kTooMany) return "there are 2^31 tiles of queries or more";
  if (p.softcap > 0 && tanh_argument(p) == 0) return "softcap and scale are more than 30 orders of magnitude apart";
  // Without options there are tiles for every head size.
  if (problem_options(p) != 0 && !tiles_for(p, config_without_tiles(p)))
    return "several options at this head size need more registers than there are";
  return nullptr;
}

// The scores of a tile, the weights that they become, half as large, and the output.
Limits config_limits(const Sm90ForwardConfig& c, const Arch& arch) {
  if (c.warpgroups < 2 || c.warpgroups > 4 || c.tile_k < 16 || c.tile_k > 256 || c.stages < 2 || c.stages > 8 ||
      c.schedule < 0 || c.schedule > (kPingPong | kPinWait | kStoreBySmem | kPrefetchQ))
    return kNoShape;
  const int registers = (2 * c.dim_v + 3 * c.tile_k) / 4 + kOtherRegisters;
  return limits_with(arch.wgmma && c.tile_k % 16 == 0, shared_bytes(c), 1, arch, registers, consumer_registers(c));
}

using Member = Tunable<Sm90ForwardConfig>::Member;
constexpr Member kMembers[] = {{&tuned::Choice::warpgroups, &Sm90ForwardConfig::warpgroups},
                               {&tuned::Choice::tile_k, &Sm90ForwardConfig::tile_k},
                               {&tuned::Choice::stages, &Sm90ForwardConfig::stages},
                               {&tuned::Choice::order, &Sm90ForwardConfig::schedule}};
constexpr Tunable<Sm90ForwardConfig> kTunable{"sm90", kMembers, config_limits};

ForwardPlan plan(const ForwardProblem& p, const PlanTarget& target) {
  Sm90ForwardConfig c = config_without_tiles(p);
  ForwardPlan plan;
  plan.family = &sm90_forward;
  plan.tuned = apply_tuned(kTunable, target.choice, target.arch, c);
  plan.reason = plan.tuned ? kTunedReason : "wgmma products and TMA loads";
  if (!plan.tuned) {
    const Tiles& t = *tiles_for(p, c);
    c.warpgroups = t.warpgroups, c.tile_k = t.tile_k, c.stages = t.stages, c.schedule = t.schedule;
  }
  plan.tile_q = tile_q_of(c), plan.tile_k = c.tile_k;
  plan.launch =
      launch_of(key_of(kKernel, target.arch, c), query_tiles(p, plan.tile_q), num_threads(c), shared_bytes(c));
  plan.launch.persistent = true;
  return plan;
}

std::vector<Alternatives> candidates(const ForwardProblem&, const ForwardPlan& plan, const Arch& arch) {
  constexpr int kUsualSchedule = kPingPong | kPinWait;
  const auto built_in = plan.launch.kernel.as<Sm90ForwardConfig>();
  const auto with_stages = [&](Sm90ForwardConfig c) {
    Alternatives kernels;
    for (const int stages : {4, 3, 2}) c.stages = stages, kernels.push_back(key_of(kKernel, arch, c));
    return kernels;
  };
  std::vector<Alternatives> all;
  for (const KernelKey& one : with_stages(built_in)) all.push_back({one});
  for (const int flag : {int{kPingPong}, int{kPinWait}, int{kStoreBySmem}, int{kPrefetchQ}}) {
    Sm90ForwardConfig c = built_in;
    c.schedule ^= flag;
    all.push_back(with_stages(c));
  }
  for (const int warpgroups : {2, 3, 4})
    for (int tile_k = 48; tile_k <= 176; tile_k += 16)
      for (const int schedule : {built_in.schedule, kUsualSchedule}) {
        Sm90ForwardConfig c = built_in;
        c.warpgroups = warpgroups, c.tile_k = tile_k, c.schedule = schedule;
        all.push_back(with_stages(c));
      }
  return all;
}

Sm90ForwardParams params_of(const ForwardProblem& p, const ForwardPlan& plan, const LaunchContext& context) {
  const ConstRows o{p.o.data, p.o.dtype, p.o.batch_stride, p.o.head_stride, p.o.row_stride};
  const bool staged = (plan.launch.kernel.as<Sm90ForwardConfig>().schedule & kStoreBySmem) != 0;
  const bool store_tma = staged && o.dtype == p.dtype && has_tensor_map(o, output_extent(p));
  return {tensor_map(p.q, query_extent(p), kWarpgroupRows),
          tensor_map(p.k, key_extent(p), plan.tile_k),
          tensor_map(p.v, value_extent(p), plan.tile_k),
          store_tma ? tensor_map(o, output_extent(p), kWarpgroupRows) : TensorMap{},
          store_tma,
          forward_params(p, context.tile_counts),
          tile_order(p, plan.tile_q, grid_of(plan.launch, context.num_sms)),
          static_cast<float>((p.softcap > 0 ? p.softcap : p.scale) * kLog2e)};
}

std::string describe(const ForwardPlan& plan) {
  const auto c = plan.launch.kernel.as<Sm90ForwardConfig>();
  return join("config     tiles of ", tile_q_of(c), " queries x ", c.tile_k, " keys, head sizes up to ", c.dim_qk,
              " and ", c.dim_v, ", ", c.stages, " stages, ", c.warpgroups, " consumer warpgroups and one producer, ",
              options_text(c.options), "\n");
}

}  // namespace

constinit const ForwardFamily sm90_forward{
    .name = "sm90",
    .serves = [](const Arch& arch) { return arch.wgmma; },
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
};

}  // namespace cuflash::cuda
