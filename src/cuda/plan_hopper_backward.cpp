// The backward kernels for Hopper: which problems they serve, whether dQ has a kernel of its own, and how many tiles travel
// at a time.
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

int64_t query_tiles(const BackwardProblem& p) { return p.batch * p.heads_q * ((p.len_q + kTileQ - 1) / kTileQ); }

// Panels are 64 columns wide, and sums of 96 columns save registers beside those of 128.
int panel_dim(int64_t dim) { return dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : dim <= 192 ? 192 : 256; }

// A kernel for dQ alone computes scores and dP once more, but adds nothing to global memory: every row is summed in one
// order, and there are no sums to be cleared, added to and read. Up to how many keys that is worth its two products:
// none, until a GPU has said so.
constexpr int64_t kLongestForTwoKernels = 0;

bool separates_dq(const BackwardProblem& p, int tile_k, Reproducible reproducible) {
  if (!p.dq) return false;
  if (!p.dk && !p.dv) return true;
  const bool needs_order = reproducible == Reproducible::yes && p.len_k > tile_k;  // one sum needs none
  return needs_order || p.len_k <= kLongestForTwoKernels;
}

// dQ of up to 128 columns leaves registers for a third warpgroup. Then as many tiles as there is room for: keys are used
// twice and stay longer than values.
HopperDqConfig dq_config(Element element, int dim_qk, int dim_v, const Arch& arch) {
  constexpr int kTileK = 64;
  HopperDqConfig c{element, dim_qk, dim_v, dim_qk <= 128 ? 3 : 2, kTileK, 4, 4, 2, 0};
  const auto fits = [&] { return shared_bytes(c) <= arch.shared_per_block; };
  if (!fits()) c.query_places = 1;
  while (!fits()) --(c.value_places >= c.key_places ? c.value_places : c.key_places);
  return c;
}

}  // namespace

HopperBackwardChoice choose_hopper_backward(const BackwardProblem& p, const Arch& arch, Reproducible reproducible,
                                            const tuned::Choice* choice) {
  if (const char* reason = why_not(p)) return {reason, {}, {}, false};
  const Element element = element_of(p.dtype);
  const int dim_qk = panel_dim(p.dim_qk), dim_v = panel_dim(p.dim_v);
  // The sums of dK and dV of 64 columns leave registers for a third warpgroup, whose products fill the others' waits.
  // Those of more than 128 columns fill all registers of one.
  const bool narrow = dim_qk == 64 && dim_v == 64, wide = dim_qk > 128 || dim_v > 128;
  const int warpgroups = narrow ? 3 : wide ? 1 : 2;
  const bool separate = separates_dq(p, kWarpgroupRows * warpgroups, reproducible), adds = p.dq && !separate;
  const int stages = narrow ? 4 : wide ? 2 : adds ? 3 : 4;
  HopperBackwardConfig c{element, dim_qk, dim_v, kTileQ, warpgroups, stages, adds};
  const bool tuned = take(choice, arch, c);
  if (!separate) return {nullptr, c, {}, tuned};
  if (query_tiles(p) >= int64_t{1} << 31) return {"there are 2^31 tiles of queries or more", {}, {}, false};
  return {nullptr, c, dq_config(element, dim_qk, dim_v, arch), tuned};
}

}  // namespace cuflash::cuda
