// The forward kernel of sm_90a: wgmma, and TMA loads by a producer warpgroup.
//
// Every config of the table compiles without spills for all that it serves (tests/cuda/cuda_kernels_test). Those without
// options were measured on an H200 (docs/lab/sm90_forward.md); cuflash tune measures them again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

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

// What the options of a call take from a tile.
enum class Needs {
  arithmetic,  // softcap, ALiBi, a scale of its own: a few registers, as a call without options
  dropout,     // more registers
  one_tile,    // bias or mask tensor in shared memory
  everything,  // both, dropout beside one, or loads of their elements by consumers
};

struct Tiles {
  int largest_qk, largest_v;
  Shape shape;
  int64_t longest_q;
  int warpgroups, tile_k, stages;
  Needs most;
  int schedule = kPingPong | kPinWait;
};
using enum Needs;
constexpr int64_t kAny = kUnbounded;
constexpr int kStaged = kPingPong | kPinWait | kStoreBySmem, kPrefetched = kStaged | kPrefetchQ;

// The first that fits is taken. Short and causal problems have smaller tiles: fewer rows of the last tile are empty,
// and fewer pairs on the diagonal are hidden. Three and four warpgroups have too few registers for dropout.
constexpr Tiles kTiles[] = {
    {64, 64, full, 512, 4, 64, 4, arithmetic, kPrefetched & ~kPingPong},     //
    {64, 64, full, 2048, 4, 64, 4, arithmetic, kStaged},                     //
    {64, 64, causal, 2048, 4, 64, 4, arithmetic, kPrefetched & ~kPingPong},  //
    {64, 64, causal, 4096, 4, 64, 4, arithmetic, kStaged},                   //
    {64, 64, either, kAny, 3, 128, 4, arithmetic},                           //
    {64, 64, either, kAny, 2, 128, 4, dropout},                              //
    {64, 64, either, kAny, 2, 128, 3, one_tile},                             //
    {64, 64, either, kAny, 2, 64, 4, everything},                            //
    {96, 96, either, kAny, 3, 96, 3, arithmetic},                            //
    {128, 128, full, 1024, 2, 128, 2, dropout, kStaged},                     //
    {128, 128, causal, 1024, 2, 128, 2, dropout, kPrefetched},               //
    {128, 128, causal, 2048, 3, 64, 2, arithmetic, kPrefetched},             //
    {128, 128, causal, 4096, 2, 128, 2, dropout, kPrefetched},               //
    {128, 128, either, kAny, 3, 80, 4, arithmetic},                          //
    {128, 128, either, kAny, 2, 128, 2, dropout, kPrefetched},               //
    {128, 128, either, kAny, 2, 128, 2, one_tile},                           //
    {128, 128, either, kAny, 2, 64, 3, everything},                          //
    {192, 128, either, kAny, 2, 128, 2, dropout},                            //
    {192, 192, either, kAny, 2, 112, 2, dropout},                            //
    {192, 192, either, kAny, 2, 64, 2, everything},                          //
    {256, 256, full, 4096, 2, 64, 2, dropout, kStaged},                      //
    {256, 256, causal, 8192, 2, 64, 2, dropout, kStaged},                    //
    {256, 256, either, kAny, 2, 80, 2, dropout},                             //
    {256, 256, either, kAny, 2, 64, 2, one_tile},                            //
    {256, 256, either, kAny, 2, 48, 2, everything},                          //
};

// Panels are 64 columns wide.
int panel_dim(int64_t dim) { return padded_head_size(std::max<int64_t>(dim, kPanelColumns)); }

// Which of bias and mask tensor TMA can load. A bias of another type than q, and rows that do not start on 16 bytes, are
// loaded element by element.
int term_tiles(const ForwardProblem& p) {
  int schedule = 0;
  if (p.bias && p.bias.dtype == p.dtype && has_tensor_map(p.bias, score_extent(p, p.bias))) schedule |= kTmaBias;
  if (p.mask && has_tensor_map(p.mask, score_extent(p, p.mask))) schedule |= kTmaMask;
  return schedule;
}

Needs needs_of(const Sm90ForwardConfig& c) {
  const int terms = c.options & (kBias | kMaskTensor);
  if (terms == 0) return c.options & kDropout ? dropout : arithmetic;
  const bool one = terms == kBias ? (c.schedule & kTmaBias) != 0 : terms == kMaskTensor && (c.schedule & kTmaMask) != 0;
  return one && !(c.options & kDropout) ? one_tile : everything;
}

Sm90ForwardConfig config_without_tiles(const ForwardProblem& p) {
  Sm90ForwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = panel_dim(p.dim_qk), c.dim_v = panel_dim(p.dim_v);
  c.options = problem_options(p);
  c.schedule = term_tiles(p);
  return c;
}

const Tiles& tiles_for(const ForwardProblem& p, const Sm90ForwardConfig& c) {
  const Shape shape = p.window_right < kUnbounded ? causal : full;
  const auto fits = [&](const Tiles& t) {
    return c.dim_qk <= t.largest_qk && c.dim_v <= t.largest_v && (t.shape & shape) != 0 && p.len_q <= t.longest_q &&
           needs_of(c) <= t.most;
  };
  return *std::find_if(std::begin(kTiles), std::end(kTiles) - 1, fits);  // the last one serves everything
}

// Softcap bounds scores to [-softcap, softcap], in powers of two [-c, c]. With a row maximum of c - spare_exponent, no
// probability is below 2^-100, and none above 2^45, so that values of up to 1e24 do not overflow. f16 has no such
// range. Four warpgroups have too few registers.
constexpr double kLeastExponent = -100, kMostSpare = 45;
double spare_exponent(const Problem& p) { return std::max(0.0, 2 * p.softcap * kLog2e + kLeastExponent); }
bool has_fixed_max(const Problem& p, const Sm90ForwardConfig& c) {
  return c.element == Element::bf16 && c.options == kSoftcap && spare_exponent(p) <= kMostSpare && c.warpgroups < 4;
}
float fixed_max(const Problem& p) { return static_cast<float>(1 - spare_exponent(p) / (p.softcap * kLog2e)); }

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
  return nullptr;
}

// The scores of a tile, the weights that they become, half as large, and the output.
Limits config_limits(const Sm90ForwardConfig& c, const Arch& arch) {
  if (c.warpgroups < 2 || c.warpgroups > 4 || c.tile_k < 16 || c.tile_k > 256 || c.stages < 2 || c.stages > 8 ||
      c.schedule < 0 || c.schedule >= 2 * kFixedMax || ((c.schedule & kTmaMask) != 0 && c.tile_k > 128))
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
    const Tiles& t = tiles_for(p, c);
    c.warpgroups = t.warpgroups, c.tile_k = t.tile_k, c.stages = t.stages, c.schedule |= t.schedule;
    if (has_fixed_max(p, c)) c.schedule |= kFixedMax;
    if (const char* tiles = std::getenv("CUFLASH_TILES"); tiles && c.options != 0)
      std::sscanf(tiles, "%d,%d,%d,%d", &c.warpgroups, &c.tile_k, &c.stages, &c.schedule);
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
  const auto c = plan.launch.kernel.as<Sm90ForwardConfig>();
  const bool store_tma = (c.schedule & kStoreBySmem) != 0 && o.dtype == p.dtype && has_tensor_map(o, output_extent(p));
  const auto term_map = [&](int flag, const ConstRows& rows, int columns) {
    if ((c.schedule & flag) == 0) return TensorMap{};
    return tensor_map(rows, score_extent(p, rows), rows.row_stride == 0 ? 1 : kWarpgroupRows, columns);
  };
  return {tensor_map(p.q, query_extent(p), kWarpgroupRows),
          tensor_map(p.k, key_extent(p), plan.tile_k),
          tensor_map(p.v, value_extent(p), plan.tile_k),
          store_tma ? tensor_map(o, output_extent(p), kWarpgroupRows) : TensorMap{},
          store_tma,
          forward_params(p, context.tile_counts),
          tile_order(p, plan.tile_q, grid_of(plan.launch, context.num_sms)),
          static_cast<float>((p.softcap > 0 ? p.softcap : p.scale) * kLog2e),
          p.softcap > 0 ? fixed_max(p) : 0,
          term_map(kTmaBias, p.bias, kPanelColumns),
          term_map(kTmaMask, p.mask, mask_row_bytes(plan.tile_k))};
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
