// The portable forward kernel: mma.sync and cp.async, for every architecture from sm_80 on.
//
// Every config of the tables compiles without spills for every load it is listed for
// (tests/cuda/jit/cuda_kernels_test); the order is that of the times on an H200 (docs/lab/portable.md).
#include <span>

#include "cuda/families/params_forward.h"
#include "cuda/families/registry.h"
#include "cuda/plan/plan_common.h"
#include "cuda/plan/tuned_config.h"
#include "error.h"

namespace cuflash::cuda {
namespace {

constexpr KernelType kKernel{.name = "forward",
                             .header = "portable/forward.h",
                             .config = "ForwardConfig",
                             .params = "ForwardParams",
                             .bounds = "num_threads(C), C.ctas_per_sm",
                             .config_ints = kInts<ForwardConfig>};
constexpr const KernelType* kKernels[] = {&kKernel};

struct Tiles {
  int largest_dim;  // largest head size of queries and keys, and of values
  int tile_q, tile_k, row_warps, column_warps, stages, ctas_per_sm;
  Load most;
};

using enum Load;
constexpr Tiles kSixteenBit[] = {
    {64, 128, 32, 4, 1, 2, 3, partial_rows},   //
    {64, 64, 64, 4, 1, 2, 2, every_option},    //
    {128, 128, 64, 4, 1, 1, 2, partial_rows},  //
    {128, 64, 64, 4, 1, 1, 2, every_option},   //
    {256, 64, 64, 4, 1, 1, 2, partial_rows},   //
    {256, 64, 32, 4, 2, 1, 1, every_option},   //
};
constexpr Tiles kF32[] = {
    {64, 64, 64, 4, 1, 2, 2, every_option},   //
    {64, 64, 64, 4, 1, 1, 2, every_option},   //
    {128, 64, 32, 4, 1, 2, 2, partial_rows},  //
    {128, 64, 32, 4, 2, 1, 1, every_option},  //
    {256, 128, 32, 8, 1, 1, 1, whole_rows},   //
    {256, 64, 32, 4, 2, 1, 1, every_option},  //
    {256, 32, 32, 2, 1, 1, 2, partial_rows},  //
    {256, 32, 32, 2, 4, 1, 1, every_option},  //
    {256, 32, 32, 2, 2, 1, 1, every_option},  //
};
constexpr Tiles kF64[] = {
    {64, 64, 32, 4, 1, 1, 1, partial_rows},   //
    {64, 64, 16, 4, 1, 1, 1, every_option},   //
    {128, 32, 16, 2, 2, 1, 1, every_option},  //
    {256, 16, 16, 1, 4, 1, 1, every_option},  //
    {256, 16, 16, 1, 2, 1, 1, every_option},  //
};

std::span<const Tiles> tiles_of(Element element) {
  if (element == Element::f64) return kF64;
  if (element == Element::f32) return kF32;
  return kSixteenBit;
}

Load load_of(const ForwardConfig& c) {
  if (c.options != 0) return every_option;
  return c.copy == kCopyWhole ? whole_rows : partial_rows;
}

const char* reason_of(const ForwardConfig& c) {
  if (c.copy == kCopyElements) return "rows that do not start on 16-byte boundaries are copied element by element";
  if (c.options == kAllOptions) return "the kernel with every option: several are given";
  if (c.options != 0) return "a kernel for the one option that is given, with smaller tiles for its registers";
  return "the largest tiles whose sums stay in registers";
}

Limits config_limits(const ForwardConfig& c, const Arch& arch) {
  if (!is_tile(c.tile_q) || !is_tile(c.tile_k) || !are_warps(c.row_warps) || !are_warps(c.column_warps) ||
      c.stages < 1 || c.stages > 4 || !has_warps(num_threads(c), c.ctas_per_sm))
    return kNoShape;
  const int columns = c.dim_v / c.column_warps;
  const bool shape = c.tile_q % (16 * c.row_warps) == 0 && c.dim_v % (16 * c.column_warps) == 0 &&
                     (c.element != Element::f32 || c.tile_k % 32 == 0);
  const int rows = c.tile_q / c.row_warps;
  const int registers =
      sum_registers(c.element, rows, columns) + sum_registers(c.element, rows, c.tile_k) + kOtherRegisters;
  return limits_with(shape, shared_bytes(c), c.ctas_per_sm, arch, registers,
                     registers_of(num_threads(c), c.ctas_per_sm));
}

using Member = Tunable<ForwardConfig>::Member;
constexpr Member kMembers[] = {{&tuned::Choice::tile_q, &ForwardConfig::tile_q},
                               {&tuned::Choice::tile_k, &ForwardConfig::tile_k},
                               {&tuned::Choice::row_warps, &ForwardConfig::row_warps},
                               {&tuned::Choice::column_warps, &ForwardConfig::column_warps},
                               {&tuned::Choice::stages, &ForwardConfig::stages},
                               {&tuned::Choice::ctas_per_sm, &ForwardConfig::ctas_per_sm}};
constexpr Tunable<ForwardConfig> kTunable{"portable", kMembers, config_limits};

ForwardPlan plan_with(const ForwardProblem& p, const Arch& arch, const ForwardConfig& c) {
  const Checked ctas = Checked(p.batch) * p.heads_q * ((p.len_q + c.tile_q - 1) / c.tile_q);
  ForwardPlan plan;
  plan.family = &portable_forward;
  plan.tile_q = c.tile_q, plan.tile_k = c.tile_k;
  plan.launch = launch_of(key_of(kKernel, arch, c), ctas, num_threads(c), shared_bytes(c));
  plan.reason = reason_of(c);
  return plan;
}

ForwardPlan plan(const ForwardProblem& p, const PlanTarget& target) {
  const Arch& arch = target.arch;
  ForwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = padded_head_size(p.dim_qk), c.dim_v = padded_head_size(p.dim_v);
  const bool vectors = has_vector_rows(p.q) && has_vector_rows(p.k) && has_vector_rows(p.v);
  const CopyMode copy = copy_mode(p, vectors);
  c.copy = copy;
  c.options = portable_options(p, copy);
  if (apply_tuned(kTunable, target.choice, arch, c)) {
    ForwardPlan plan = plan_with(p, arch, c);
    plan.reason = kTunedReason, plan.tuned = true;
    return plan;
  }
  for (const Tiles& t : tiles_of(c.element)) {
    if (c.dim_qk > t.largest_dim || c.dim_v > t.largest_dim || load_of(c) > t.most) continue;
    if (c.dim_v % (16 * t.column_warps) != 0) continue;  // four warps cannot share 32 or 96 columns
    c.tile_q = t.tile_q, c.tile_k = t.tile_k, c.row_warps = t.row_warps, c.column_warps = t.column_warps;
    c.stages = t.stages, c.ctas_per_sm = t.ctas_per_sm;
    if (shared_bytes(c) <= arch.shared_per_block) return plan_with(p, arch, c);
  }
  refuse(join("no forward kernel of ", name_of(p.dtype), " with head sizes ", p.dim_qk, " and ", p.dim_v,
              " fits the shared memory of ", target_of(arch)));
}

std::vector<Alternatives> candidates(const ForwardProblem&, const ForwardPlan& plan, const Arch& arch) {
  struct Lists {
    std::vector<int> tile_q, tile_k;
  };
  ForwardConfig c = plan.launch.kernel.as<ForwardConfig>();
  const Lists lists = c.element == Element::f64   ? Lists{{16, 32, 64}, {16, 32}}
                      : c.element == Element::f32 ? Lists{{32, 64, 128}, {32, 64}}
                                                  : Lists{{64, 128}, {32, 64, 128}};
  std::vector<Alternatives> all;
  for (const int tile_q : lists.tile_q)
    for (const int tile_k : lists.tile_k)
      for (const int row_warps : {1, 2, 4, 8})
        for (const int column_warps : {1, 2, 4})
          for (const int stages : {1, 2}) {
            if (row_warps * column_warps > 8 || tile_q > 32 * row_warps) continue;
            c.tile_q = tile_q, c.tile_k = tile_k, c.row_warps = row_warps, c.column_warps = column_warps;
            c.stages = stages;
            Alternatives& alternatives = all.emplace_back();
            for (const int ctas : {3, 2, 1}) {
              c.ctas_per_sm = ctas;
              if (ctas == 1 || has_spare_registers(config_limits(c, arch)))
                alternatives.push_back(key_of(kKernel, arch, c));
            }
          }
  return all;
}

std::string describe(const ForwardPlan& plan) { return portable_config_line(plan.launch.kernel.as<ForwardConfig>()); }

}  // namespace

constinit const ForwardFamily portable_forward{
    .name = "portable",
    .serves = nullptr,
    .why_not = [](const ForwardProblem&, const PlanTarget&) -> const char* { return nullptr; },
    .plan = plan,
    .candidates = candidates,
    .limits = [](const KernelKey& kernel, const Arch& arch) { return config_limits(kernel.as<ForwardConfig>(), arch); },
    .choice = [](const KernelKey& kernel) { return choice_of(kTunable, kernel.as<ForwardConfig>()); },
    .params = [](const ForwardProblem& p, const ForwardPlan&, const LaunchContext& context,
                 KernelParams& params) { params.set([&] { return forward_params(p, context.tile_counts); }); },
    .describe = describe,
    .kernels = kKernels,
    .reads_mask_summary = true,
};

}  // namespace cuflash::cuda
