// The backward kernels for Hopper: which problems they serve, whether dQ has a kernel of its own, and how many tiles travel
// at a time.
#include <algorithm>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/plan_common.h"
#include "cuda/families/sm90_forward.h"
#include "cuda/families/tuned_config.h"

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
  // Packed sequences may have one more each.
  constexpr int64_t kTooMany = int64_t{1} << 31;
  const Checked tiles = Checked(p.batch) * p.heads_q * ((p.len_q + kTileQ - 1) / kTileQ + 1);
  if (tiles.at_most(kTooMany) == kTooMany) return "there are 2^31 tiles of queries or more";
  return nullptr;
}

// Panels are 64 columns wide, and sums of 96 columns save registers beside those of 128.
int panel_dim(int64_t dim) { return dim <= 64 ? 64 : dim <= 96 ? 96 : dim <= 128 ? 128 : dim <= 192 ? 192 : 256; }

// A kernel for dQ alone computes scores and dP once more, but adds nothing to global memory: every row is summed in one
// order, and there are no sums to be cleared, added to and read. On an H200 that is faster for head sizes above 128, whose
// sums fill the registers so that few queries meet a tile of keys and each adds its dQ (1.01 to 1.24 of the speed of sums
// in memory), and for short causal sequences of 65 to 128 columns (1.04 at 512 keys, 0.89 at 2,048), where clearing and
// reading the sums is a fifth of the time.
constexpr int64_t kShortCausal = 512;

bool separates_dq(const BackwardProblem& p, int widest, int tile_k, Reproducible reproducible) {
  if (!p.dq) return false;
  if ((!p.dk && !p.dv) || widest > 128) return true;
  const bool needs_order = reproducible == Reproducible::yes && p.len_k > tile_k;  // one sum needs none
  const bool causal = p.window_right < kUnbounded;
  return needs_order || (causal && widest > 64 && p.len_k <= kShortCausal);
}

// dQ of up to 128 columns leaves registers for a third warpgroup. Then as many tiles as there is room for: keys are used
// twice and stay longer than values. Turns give 1 to 4% where scores are as wide as dQ; with 64 columns the exponentials are
// what is short, and above 192 their registers.
Sm90DqConfig dq_config(Element element, int dim_qk, int dim_v, const Arch& arch) {
  constexpr int kTileK = 64;
  const int widest = std::max(dim_qk, dim_v);
  Sm90DqConfig c{element, dim_qk, dim_v, dim_qk <= 128 ? 3 : 2, kTileK, 4, 4, 2, widest > 64 && widest <= 192};
  const auto fits = [&] { return shared_bytes(c) <= arch.shared_per_block; };
  if (!fits()) c.query_stages = 1;
  while (!fits()) --(c.value_stages >= c.key_stages ? c.value_stages : c.key_stages);
  return c;
}

}  // namespace

Sm90BackwardChoice choose_sm90_backward(const BackwardProblem& p, const Arch& arch, Reproducible reproducible,
                                        const tuned::Choice* choice) {
  if (const char* reason = why_not(p)) return {reason, {}, {}, false};
  const Element element = element_of(p.dtype);
  const int dim_qk = panel_dim(p.dim_qk), dim_v = panel_dim(p.dim_v);
  // The sums of dK and dV of 64 columns leave registers for a third warpgroup, whose products fill the others' waits.
  // Those of more than 128 columns fill all registers of one.
  const bool narrow = dim_qk == 64 && dim_v == 64, wide = dim_qk > 128 || dim_v > 128;
  const int warpgroups = narrow ? 3 : wide ? 1 : 2;
  const bool separate = separates_dq(p, std::max(dim_qk, dim_v), kWarpgroupRows * warpgroups, reproducible);
  const bool adds = p.dq && !separate;
  const int stages = narrow ? 4 : wide ? 2 : adds ? 3 : 4;
  Sm90BackwardConfig c{element, dim_qk, dim_v, kTileQ, warpgroups, stages, adds};
  const bool tuned = apply_tuned(choice, arch, c);
  if (!separate) return {nullptr, c, {}, tuned};
  return {nullptr, c, dq_config(element, dim_qk, dim_v, arch), tuned};
}

}  // namespace cuflash::cuda
