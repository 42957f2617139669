// Tiles of the forward kernels. Every candidate compiles without spills for every option it is listed for
// (tests/cuda_kernels_test); the order is that of the times on an H200 (docs/log.md).
#include <span>

#include "cuda/families/plan_common.h"
#include "cuda/families/sm90_forward.h"
#include "cuda/families/tuned_config.h"
#include "error.h"

namespace cuflash::cuda {

namespace {

// What registers are needed for beside the sums: nothing, incomplete rows, options.
enum Load { whole_rows = 0, plain = 1, options = 2 };

struct Tiles {
  int largest_dim;  // of queries and keys, and of values
  int tile_q, tile_k, row_warps, column_warps, stages, ctas_per_sm;
  Load most;
};

constexpr Tiles kSixteenBit[] = {
    {64, 128, 32, 4, 1, 2, 3, plain},    //
    {64, 64, 64, 4, 1, 2, 2, options},   //
    {128, 128, 64, 4, 1, 1, 2, plain},   //
    {128, 64, 64, 4, 1, 1, 2, options},  //
    {256, 64, 64, 4, 1, 1, 2, plain},    //
    {256, 64, 32, 4, 2, 1, 1, options},  //
};
constexpr Tiles kF32[] = {
    {64, 64, 64, 4, 1, 2, 2, options},       //
    {64, 64, 64, 4, 1, 1, 2, options},       //
    {128, 64, 32, 4, 1, 2, 2, plain},        //
    {128, 64, 32, 4, 2, 1, 1, options},      //
    {256, 128, 32, 8, 1, 1, 1, whole_rows},  //
    {256, 64, 32, 4, 2, 1, 1, options},      //
    {256, 32, 32, 2, 1, 1, 2, plain},        //
    {256, 32, 32, 2, 4, 1, 1, options},      //
    {256, 32, 32, 2, 2, 1, 1, options},      //
};
constexpr Tiles kF64[] = {
    {64, 64, 32, 4, 1, 1, 1, plain},     //
    {64, 64, 16, 4, 1, 1, 1, options},   //
    {128, 32, 16, 2, 2, 1, 1, options},  //
    {256, 16, 16, 1, 4, 1, 1, options},  //
    {256, 16, 16, 1, 2, 1, 1, options},  //
};

std::span<const Tiles> candidates(Element element) {
  if (element == Element::f64) return kF64;
  if (element == Element::f32) return kF32;
  return kSixteenBit;
}

Load load_of(const ForwardConfig& c) {
  if (c.options != 0) return options;
  return c.copy == kCopyWhole ? whole_rows : plain;
}

const char* reason_of(const ForwardConfig& c) {
  if (c.copy == kCopyElements) return "rows that do not start on 16-byte boundaries are copied element by element";
  if (c.options == kAllOptions) return "the kernel with every option: several are given";
  if (c.options != 0) return "a kernel for the one option that is given, with smaller tiles for its registers";
  return "the largest tiles whose sums stay in registers";
}

ForwardPlan plan_with(const ForwardProblem& p, const Arch& arch, const ForwardConfig& c) {
  const Checked ctas = Checked(p.batch) * p.heads_q * ((p.len_q + c.tile_q - 1) / c.tile_q);
  return {c, c.tile_q, c.tile_k, launch_of(key_of(KernelKind::forward, arch, c), ctas, num_threads(c), shared_bytes(c)),
          reason_of(c)};
}

ForwardPlan plan_portable(const ForwardProblem& p, const Arch& arch, const tuned::Choice* choice) {
  ForwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = padded_dim(p.dim_qk), c.dim_v = padded_dim(p.dim_v);
  const bool vectors = has_vector_rows(p.q) && has_vector_rows(p.k) && has_vector_rows(p.v);
  const CopyMode copy = copy_mode(p, vectors);
  c.copy = copy;
  c.options = kernel_options(p, copy);
  if (apply_tuned(choice, arch, c)) {
    ForwardPlan plan = plan_with(p, arch, c);
    plan.reason = kTunedReason, plan.tuned = true;
    return plan;
  }
  for (const Tiles& t : candidates(c.element)) {
    if (c.dim_qk > t.largest_dim || c.dim_v > t.largest_dim || load_of(c) > t.most) continue;
    if (c.dim_v % (16 * t.column_warps) != 0) continue;  // four warps cannot share 32 or 96 columns
    c.tile_q = t.tile_q, c.tile_k = t.tile_k, c.row_warps = t.row_warps, c.column_warps = t.column_warps;
    c.stages = t.stages, c.ctas_per_sm = t.ctas_per_sm;
    if (shared_bytes(c) <= arch.shared_per_block) return plan_with(p, arch, c);
  }
  throw FlashAttentionError(CUFLASH_UNSUPPORTED,
                            join("no forward kernel of ", name_of(p.dtype), " with head sizes ", p.dim_qk, " and ",
                                 p.dim_v, " fits the shared memory of ", target_of(arch)));
}

}  // namespace

ForwardPlan plan_forward(const ForwardProblem& p, const Arch& arch, Kernels kernels, const tuned::Choice* choice) {
  require_supported(p);
  if (kernels == Kernels::portable || arch.number() != 90) return plan_portable(p, arch, choice);
  const Sm90ForwardPlan hopper = plan_sm90_forward(p, arch, choice);
  if (!hopper.why_not) return hopper.plan;
  ForwardPlan plan = plan_portable(p, arch, choice);
  plan.not_sm90 = hopper.why_not;
  return plan;
}

}  // namespace cuflash::cuda
