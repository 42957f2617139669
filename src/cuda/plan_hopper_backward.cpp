// The backward kernel for Hopper: which problems it serves, and how many tiles of queries travel at a time.
#include "cuda/plan_dims.h"
#include "cuda/plan_hopper.h"
#include "cuda/tensor_map.h"
#include "cuda/tuned_config.h"

namespace cuflash::cuda {
namespace {

constexpr int kTileQ = 64;

const char* why_not(const BackwardProblem& p) {
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "its products are those of f16 and bf16";
  if (p.batch == 0 || p.len_q == 0 || p.len_k == 0) return "there is nothing to multiply";
  if (kernel_options(p, kCopyVectors) != 0) return "it computes no options that change scores or weights";
  if (p.dout.dtype != p.dtype) return "dO has another type than q";
  if (!has_tensor_map(p.q, query_extent(p)) || !has_tensor_map(p.k, key_extent(p)) ||
      !has_tensor_map(p.v, value_extent(p)) || !has_tensor_map(p.dout, output_extent(p)))
    return "rows of q, k, v or dO do not start on 16-byte boundaries, repeat, or are 2^40 bytes apart";
  return nullptr;
}

// Panels are 64 columns wide, and sums of 96 columns save registers beside those of 128.
int panel_dim(int64_t dim) { return dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : dim <= 192 ? 192 : 256; }

}  // namespace

HopperBackwardChoice choose_hopper_backward(const BackwardProblem& p, const Arch& arch, const tuned::Choice* choice) {
  if (const char* reason = why_not(p)) return {reason, {}, false};
  const int dim_qk = panel_dim(p.dim_qk), dim_v = panel_dim(p.dim_v);
  // The sums of dK and dV of 64 columns leave registers for a third warpgroup, whose products fill the others' waits.
  // Those of more than 128 columns fill all registers of one.
  const bool narrow = dim_qk == 64 && dim_v == 64, wide = dim_qk > 128 || dim_v > 128;
  const int warpgroups = narrow ? 3 : wide ? 1 : 2, stages = narrow ? 4 : wide ? 2 : 3;
  HopperBackwardConfig c{element_of(p.dtype), dim_qk, dim_v, kTileQ, warpgroups, stages, 0};
  const bool tuned = take(choice, arch, c);
  return {nullptr, c, tuned};
}

}  // namespace cuflash::cuda
