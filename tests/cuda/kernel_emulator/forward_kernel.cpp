// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_forward_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "sm90/forward.h"
#include "sm90/combine_splits.h"
#include "sm90/mask_list.h"
#include "sm90/tile_list.h"
#include "portable/summarize_mask.h"
#include "portable/backward_prepare.h"
#include "sm90/backward.h"
#include "sm90/dq.h"
#undef __shared__
#define __shared__ static  // one CTA runs at a time
#include "portable/backward_finish.h"
// clang-format on
#undef cuflash

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/kernel_emulator/forward_kernel.h"

namespace host_forward_kernels {
alignas(1024) unsigned char memory[(size_t{228} << 10) + 128];
}  // namespace host_forward_kernels

namespace kernel_emulator {
namespace {

using namespace host_forward_kernels;

struct ForwardKernel {
  std::string name, config;  // as the program writes them
  void (*run)(const void* params);
};
const Sm90ForwardParams& params_at(const void* p) { return *static_cast<const Sm90ForwardParams*>(p); }
template <class Config>
std::string text_of(const Config& c) {
  int ints[sizeof c / sizeof(int)];
  std::memcpy(ints, &c, sizeof c);
  std::string text = "{Element{" + std::to_string(ints[0]) + "}";
  for (size_t n = 1; n < std::size(ints); ++n) text += ", " + std::to_string(ints[n]);
  return text + "}";
}
template <Sm90ForwardConfig C>
ForwardKernel forward_kernel() {
  return {"sm90_forward<", text_of(C), [](const void* p) { sm90_forward<C>(params_at(p)); }};
}
template <Sm90ForwardConfig C>
ForwardKernel list_kernel() {
  return {"sm90_tile_list<", text_of(C), [](const void* p) { sm90_tile_list<C>(params_at(p)); }};
}
template <MergeConfig C>
ForwardKernel combine_kernel() {
  return {"combine_splits<", text_of(C), [](const void* p) { combine_splits<C>(params_at(p)); }};
}
template <Sm90ForwardConfig C>
ForwardKernel mask_list_kernel() {
  return {"sm90_mask_list<", text_of(C), [](const void* p) { sm90_mask_list<C>(params_at(p)); }};
}
template <MaskSummaryConfig C>
ForwardKernel summary_kernel() {
  return {"summarize_mask<", text_of(C),
          [](const void* p) { summarize_mask<C>(*static_cast<const MaskSummaryParams*>(p)); }};
}
#define CUFLASH_BACKWARD_KERNEL(kernel, Config, Params)                                                 \
  template <Config C>                                                                                   \
  ForwardKernel kernel##_kernel() {                                                                     \
    return {#kernel "<", text_of(C), [](const void* p) { kernel<C>(*static_cast<const Params*>(p)); }}; \
  }
CUFLASH_BACKWARD_KERNEL(sm90_backward, Sm90BackwardConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(sm90_dq, Sm90DqConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(sm90_backward_mask_list, Sm90BackwardConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(sm90_dq_mask_list, Sm90DqConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(backward_prepare, BackwardConfig, BackwardParams)
CUFLASH_BACKWARD_KERNEL(backward_finish, BackwardConfig, BackwardParams)
#undef CUFLASH_BACKWARD_KERNEL
constexpr Element bf16 = Element::bf16, f32 = Element::f32;
// As plans for sm_90 choose them.
const ForwardKernel kForwardKernels[] = {
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3, 0, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3, 0, kSplitKeys | kPackHeads}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3, kSoftcap | kAlibi | kDropout, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 128, 4, 3 | kFixedMax, kSoftcap, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 64, 4, 3, kBias | kMaskTensor, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 96, 96, 3, 96, 3, 3, 0, kTileList}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 3, 96, 0, 0, 0, 0}>(),
    combine_kernel<MergeConfig{bf16, 16}>(),
    summary_kernel<MaskSummaryConfig{f32, 0}>(),
    summary_kernel<MaskSummaryConfig{f32, 1}>(),
    mask_list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 64, 0, 0, 0, 0}>(),
    mask_list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 128, 0, 0, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 15, kMaskTensor, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3, kMaskTensor, kSplitKeys}>(),
    sm90_backward_mask_list_kernel<Sm90BackwardConfig{bf16, 0, 0, 64, 2, 0, 0, 0}>(),
    sm90_dq_mask_list_kernel<Sm90DqConfig{bf16, 0, 0, 2, 64, 0, 0, 0, 0, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 2, 4, 0, kMaskTensor}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 2, 4, 1, kMaskTensor}>(),
    sm90_dq_kernel<Sm90DqConfig{bf16, 64, 64, 2, 64, 4, 4, 2, 0, kMaskTensor}>(),
    backward_prepare_kernel<BackwardConfig{bf16, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{bf16, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{bf16, 64, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
};

}  // namespace

std::string run_forward_kernel(const char* program, const void* params, const Grid& grid, int threads,
                               size_t shared_bytes, uint64_t seed) {
  const std::string text = program;
  for (const ForwardKernel& kernel : kForwardKernels) {
    if (text.find(kernel.name) == std::string::npos || text.find(kernel.config) == std::string::npos) continue;
    std::vector<int64_t> order(static_cast<size_t>(grid.ctas()));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    std::shuffle(order.begin(), order.end(), random);
    for (const int64_t n : order) {
      std::memset(memory, 0xff, sizeof memory);
      gridDim = {grid.x, grid.y, grid.z};
      blockIdx = {static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y), 0};
      run_threads(threads, random(), [&] { kernel.run(params); });
      for (size_t byte = shared_bytes; byte < sizeof memory; ++byte)
        if (memory[byte] != 0xff) return "the kernel writes beyond the shared memory of its launch";
    }
    return "";
  }
  return "this program does not contain the kernel " + text;
}

}  // namespace kernel_emulator
