// Tiles of the forward kernel for Hopper. Every candidate compiles without spills for every option it is listed for
// (tests/cuda_kernels_test); those without options were measured on an H200 (docs/log.md; cuflash tune measures them again).
#include "cuda/families/sm90_forward.h"

#include <algorithm>
#include <bit>

#include "cuda/driver/tensor_map.h"
#include "cuda/families/plan_common.h"
#include "cuda/families/tuned_config.h"

namespace cuflash::cuda {
namespace {

// What registers are needed for beside the sums.
enum Load { plain = 0, one_option = 1, every_option = 2 };
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
constexpr int64_t kAny = kUnbounded;
constexpr int kStaged = kPingPong | kPinWait | kStoreBySmem, kPrefetched = kStaged | kPrefetchQ;

// The first that serves. What is short or causal has smaller tiles: fewer rows of the last one are empty, and fewer pairs
// on the diagonal are hidden.
constexpr Tiles kTiles[] = {
    {64, 64, full, 512, 4, 64, 4, plain, kPrefetched & ~kPingPong},     //
    {64, 64, full, 2048, 4, 64, 4, plain, kStaged},                     //
    {64, 64, causal, 2048, 4, 64, 4, plain, kPrefetched & ~kPingPong},  //
    {64, 64, causal, 4096, 4, 64, 4, plain, kStaged},                   //
    {64, 64, either, kAny, 3, 128, 4, plain},                           //
    {96, 96, either, kAny, 3, 96, 3, plain},                            //
    {128, 128, full, 1024, 2, 128, 2, plain, kStaged},                  //
    {128, 128, causal, 1024, 2, 128, 2, plain, kPrefetched},            //
    {128, 128, causal, 2048, 3, 64, 2, plain, kPrefetched},             //
    {128, 128, causal, 4096, 2, 128, 2, plain, kPrefetched},            //
    {128, 128, either, kAny, 3, 80, 4, plain},                          //
    {192, 128, either, kAny, 2, 128, 2, plain},                         //
    {192, 192, either, kAny, 2, 112, 2, plain},                         //
    {256, 256, full, 4096, 2, 64, 2, plain, kStaged},                   //
    {256, 256, causal, 8192, 2, 64, 2, plain, kStaged},                 //
    {256, 256, either, kAny, 2, 80, 2, plain},                          //
    {128, 128, either, kAny, 2, 64, 3, one_option},                     //
    {256, 256, either, kAny, 2, 48, 2, one_option},                     //
    {128, 128, either, kAny, 2, 32, 4, every_option},                   //
    {192, 192, either, kAny, 2, 32, 3, every_option},                   //
};

constexpr int kDims[] = {64, 96, 128, 192, 256};

int panel_dim(int64_t dim) {
  return *std::find_if(std::begin(kDims), std::end(kDims), [&](int padded) { return padded >= dim; });
}

Load load_of(int options) {
  if (options == 0) return plain;
  return std::has_single_bit(static_cast<unsigned>(options)) ? one_option : every_option;
}

Checked tiles_of(const Problem& p, int tile_q) {
  return Checked(p.batch) * p.heads_q * ((p.len_q + tile_q - 1) / tile_q);
}

const char* why_not(const ForwardProblem& p) {
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) return "its products are those of f16 and bf16";
  if (p.batch == 0 || p.len_q == 0 || p.len_k == 0) return "there is nothing to multiply";
  if (!has_vector_rows(p.q) || !has_vector_rows(p.k) || !has_vector_rows(p.v))
    return "rows of q, k or v do not start on 16-byte boundaries";
  if (!has_tensor_map(p.q, query_extent(p)) || !has_tensor_map(p.k, key_extent(p)) ||
      !has_tensor_map(p.v, value_extent(p)))
    return "rows of q, k or v repeat, or are 2^40 bytes apart";
  constexpr int64_t kTooMany = int64_t{1} << 31;
  if (tiles_of(p, kWarpgroupRows).at_most(kTooMany) == kTooMany) return "there are 2^31 tiles of queries or more";
  return nullptr;
}

ForwardPlan plan_with(const ForwardProblem& p, const Arch& arch, const Sm90ForwardConfig& c) {
  const int tile_q = tile_q_of(c);
  ForwardPlan plan{c, tile_q, c.tile_k, {}, "warpgroup products and tensor copies of Hopper"};
  plan.launch =
      launch_of(key_of(KernelKind::sm90_forward, arch, c), tiles_of(p, tile_q), num_threads(c), shared_bytes(c));
  plan.launch.persistent = true;
  return plan;
}

}  // namespace

Sm90ForwardPlan plan_sm90_forward(const ForwardProblem& p, const Arch& arch, const tuned::Choice* choice) {
  if (const char* reason = why_not(p)) return {reason, {}};
  Sm90ForwardConfig c{};
  c.element = element_of(p.dtype);
  c.dim_qk = panel_dim(p.dim_qk), c.dim_v = panel_dim(p.dim_v);
  c.options = kernel_options(p, kCopyVectors);
  if (apply_tuned(choice, arch, c)) {
    ForwardPlan plan = plan_with(p, arch, c);
    plan.reason = kTunedReason, plan.tuned = true;
    return {nullptr, plan};
  }
  const Shape shape = p.window_right < kUnbounded ? causal : full;
  for (const Tiles& t : kTiles) {
    if (c.dim_qk > t.largest_qk || c.dim_v > t.largest_v || (t.shape & shape) == 0 || p.len_q > t.longest_q ||
        load_of(c.options) > t.most)
      continue;
    c.warpgroups = t.warpgroups, c.tile_k = t.tile_k, c.stages = t.stages, c.schedule = t.schedule;
    return {nullptr, plan_with(p, arch, c)};
  }
  return {"several options at this head size need more registers than there are", {}};
}

}  // namespace cuflash::cuda
