// Tiles of the forward kernel for Hopper. Every candidate compiles without spills for every option it is listed for
// (tests/cuda_kernels_test); which is best has not been measured yet: bench/tiles does that.
#include "cuda/plan_hopper.h"

#include <algorithm>
#include <bit>

#include "cuda/plan_dims.h"
#include "cuda/tensor_map.h"

namespace cuflash::cuda {
namespace {

// What registers are needed for beside the sums.
enum Load { plain = 0, one_option = 1, every_option = 2 };

struct Tiles {
  int largest_qk, largest_v;
  int warpgroups, tile_k, stages, turns;
  Load most;
};

constexpr Tiles kTiles[] = {
    {64, 64, 3, 128, 4, 1, plain},          //
    {96, 96, 3, 96, 3, 1, plain},           //
    {128, 128, 3, 80, 4, 1, plain},         //
    {192, 128, 2, 128, 2, 1, plain},        //
    {192, 192, 2, 112, 2, 1, plain},        //
    {256, 256, 2, 80, 2, 1, plain},         //
    {128, 128, 2, 64, 3, 1, one_option},    //
    {256, 256, 2, 48, 2, 1, one_option},    //
    {128, 128, 2, 32, 4, 1, every_option},  //
    {192, 192, 2, 32, 3, 1, every_option},  //
};

constexpr int kDims[] = {64, 96, 128, 192, 256};
// Of L2, for keys and values of heads whose tiles are worked on at the same time.
constexpr int64_t kTogetherBytes = int64_t{32} << 20;

int panel_dim(int64_t dim) {
  return *std::find_if(std::begin(kDims), std::end(kDims), [&](int padded) { return padded >= dim; });
}

Load load_of(int options) {
  if (options == 0) return plain;
  return std::has_single_bit(static_cast<unsigned>(options)) ? one_option : every_option;
}

int64_t tiles_of(const Problem& p, int tile_q) { return p.batch * p.heads_q * ((p.len_q + tile_q - 1) / tile_q); }

TileOrder order_of(const Problem& p, int tile_q) {
  const int64_t head_bytes = std::max<int64_t>(1, p.len_k) * (p.dim_qk + p.dim_v) * size_of(element_of(p.dtype));
  const int64_t together = std::max<int64_t>(1, kTogetherBytes / head_bytes) * p.group();
  return {static_cast<unsigned>(tiles_of(p, tile_q)), static_cast<unsigned>((p.len_q + tile_q - 1) / tile_q),
          static_cast<unsigned>(std::min(together, p.batch * p.heads_q)), p.window_right < kUnbounded};
}

const char* why_not(const ForwardProblem& p, const Arch& arch) {
  if (arch.number() != 90) return "it needs sm_90a";
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "its products are those of f16 and bf16";
  if (p.batch == 0 || p.len_q == 0 || p.len_k == 0) return "there is nothing to multiply";
  if (!has_vector_rows(p.q) || !has_vector_rows(p.k) || !has_vector_rows(p.v))
    return "rows of q, k or v do not start on 16-byte boundaries";
  if (!has_tensor_map(p.q, query_extent(p)) || !has_tensor_map(p.k, key_extent(p)) ||
      !has_tensor_map(p.v, value_extent(p)))
    return "rows of q, k or v repeat, or are 2^40 bytes apart";
  if (tiles_of(p, kWarpgroupRows) >= int64_t{1} << 31) return "there are 2^31 tiles of queries or more";
  return nullptr;
}

}  // namespace

HopperPlan plan_hopper_forward(const ForwardProblem& p, const Arch& arch) {
  if (const char* reason = why_not(p, arch)) return {reason, {}};
  HopperForwardConfig c{};
  c.dim_qk = panel_dim(p.dim_qk), c.dim_v = panel_dim(p.dim_v);
  c.options = kernel_options(p, kCopyVectors);
  for (const Tiles& t : kTiles) {
    if (c.dim_qk > t.largest_qk || c.dim_v > t.largest_v || load_of(c.options) > t.most) continue;
    c.warpgroups = t.warpgroups, c.tile_k = t.tile_k, c.stages = t.stages, c.turns = t.turns;
    return {nullptr, plan_hopper_forward(p, arch, c)};
  }
  return {"several options at this head size need more registers than there are", {}};
}

ForwardPlan plan_hopper_forward(const ForwardProblem& p, const Arch& arch, const HopperForwardConfig& wanted) {
  HopperForwardConfig c = wanted;
  c.element = element_of(p.dtype);
  c.dim_qk = panel_dim(p.dim_qk), c.dim_v = panel_dim(p.dim_v);
  c.options = kernel_options(p, kCopyVectors);
  const int tile_q = tile_q_of(c);
  ForwardPlan plan{
      c, tile_q, c.tile_k, {}, "warpgroup products and tensor copies of Hopper", nullptr, order_of(p, tile_q)};
  plan.launch =
      launch_of(key_of(KernelKind::hopper_forward, arch, c), tiles_of(p, tile_q), num_threads(c), shared_bytes(c));
  plan.launch.stays = true;
  return plan;
}

}  // namespace cuflash::cuda
