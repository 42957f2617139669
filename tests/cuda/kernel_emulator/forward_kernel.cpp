// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_forward_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "sm90/forward/forward.h"
#include "sm90/forward/combine_splits.h"
#include "kv/prepare.h"
#include "sm90/lists/mask_list.h"
#include "sm90/lists/tile_list.h"
#include "portable/summarize_mask.h"
#include "portable/backward_prepare.h"
#include "sm90/backward/backward.h"
#include "sm90/dq/dq.h"
#undef __shared__
#define __shared__ static  // one CTA runs at a time
#include "portable/backward_finish.h"
// clang-format on
#undef cuflash

#include "tests/cuda/kernel_emulator/forward_kernel.h"
#include "tests/cuda/kernel_emulator/run_kernel.h"

namespace host_forward_kernels {
alignas(1024) unsigned char memory[(size_t{228} << 10) + 128];
}  // namespace host_forward_kernels

namespace kernel_emulator {
namespace {

using namespace host_forward_kernels;

template <Sm90ForwardConfig C>
EmulatedKernel forward_kernel() {
  return {"sm90_forward<", text_of(C),
          [](const void* p) { sm90_forward<C>(*static_cast<const Sm90ForwardParams*>(p)); }};
}
template <Sm90ForwardConfig C>
EmulatedKernel list_kernel() {
  return {"sm90_tile_list<", text_of(C),
          [](const void* p) { sm90_tile_list<C>(*static_cast<const Sm90ForwardParams*>(p)); }};
}
template <MergeConfig C>
EmulatedKernel combine_kernel() {
  return {"combine_splits<", text_of(C),
          [](const void* p) { combine_splits<C>(*static_cast<const Sm90ForwardParams*>(p)); }};
}
template <Sm90ForwardConfig C>
EmulatedKernel mask_list_kernel() {
  return {"sm90_mask_list<", text_of(C),
          [](const void* p) { sm90_mask_list<C>(*static_cast<const Sm90ForwardParams*>(p)); }};
}
template <CachePrepareConfig C>
EmulatedKernel prepare_kernel() {
  return {"prepare_cache<", text_of(C),
          [](const void* p) { prepare_cache<C>(*static_cast<const CachedForwardParams*>(p)); }};
}
template <MaskSummaryConfig C>
EmulatedKernel summary_kernel() {
  return {"summarize_mask<", text_of(C),
          [](const void* p) { summarize_mask<C>(*static_cast<const MaskSummaryParams*>(p)); }};
}
#define CUFLASH_BACKWARD_KERNEL(kernel, Config, Params)                                                 \
  template <Config C>                                                                                   \
  EmulatedKernel kernel##_kernel() {                                                                    \
    return {#kernel "<", text_of(C), [](const void* p) { kernel<C>(*static_cast<const Params*>(p)); }}; \
  }
CUFLASH_BACKWARD_KERNEL(sm90_backward, Sm90BackwardConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(sm90_dq, Sm90DqConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(sm90_backward_mask_list, Sm90BackwardConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(sm90_dq_mask_list, Sm90DqConfig, Sm90BackwardParams)
CUFLASH_BACKWARD_KERNEL(backward_prepare, BackwardConfig, BackwardParams)
CUFLASH_BACKWARD_KERNEL(backward_finish, BackwardConfig, BackwardParams)
#undef CUFLASH_BACKWARD_KERNEL
constexpr Element bf16 = Element::bf16, f16 = Element::f16, f32 = Element::f32;
// Configs that plans for sm_90 choose.
constexpr int kNoTurns = kPinWait | kStoreBySmem | kPrefetchQ | kFirstMax;
constexpr int short_tiles(int ctas_per_sm) { return kPinWait | kPrefetchQ | (ctas_per_sm - 1) * kMoreCtas; }
const EmulatedKernel kForwardKernels[] = {
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 4, 64, 4, kNoTurns, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{f16, 64, 64, 4, 64, 4, kNoTurns, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 1, 128, 3, kPinWait | kFirstMax, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 2, 128, 2, kNoTurns, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3 | kFirstMax, 0, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3 | kFirstMax, 0, kSplitKeys | kPackHeads}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3, kSoftcap | kAlibi | kDropout, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFixedMax, kSoftcap, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 96, 4, kNoTurns, kSoftcap, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFixedMax, kSoftcap, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFirstMax, 0, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFirstMax, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait, kAlibi, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 96, 4, kNoTurns, kAlibi, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 64, 4, kNoTurns, kAlibi | kDropout, 0}>(),
    forward_kernel<Sm90ForwardConfig{f16, 64, 64, 3, 96, 4, kNoTurns, kSoftcap, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 64, 4, 3, kBias | kMaskTensor, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 192, 96, 2, 128, 2, 3 | kFirstMax, 0, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 96, 96, 2, 128, 2, kNoTurns, 0, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFirstMax, 0, kPagedKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 4, 64, 4, kNoTurns, 0, kPagedKeys}>(),
    forward_kernel<Sm90ForwardConfig{f16, 64, 64, 4, 64, 4, kNoTurns, 0, kPagedKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFirstMax, 0, kSplitKeys | kPagedKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 96, 96, 2, 128, 2, kNoTurns, 0, kTileList | kPagedKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 32, 32, 1, 64, 2, short_tiles(4) | kOneKeyTile, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{f16, 32, 32, 1, 64, 2, short_tiles(4) | kOneKeyTile, 0, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 80, 2, short_tiles(3) | kOneKeyTile, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 2, short_tiles(2) | kOneKeyTile, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 2, short_tiles(2) | kOneKeyTile, 0, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 64, 3, short_tiles(3) | kFirstMax, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 1, 64, 2, short_tiles(2) | kOneKeyTile, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 32, 32, 1, 64, 2, short_tiles(3) | kOneKeyTile | kTmaBias, kBias, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 32, 32, 1, 64, 2, short_tiles(4) | kOneKeyTile, kBias, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 32, 32, 1, 64, 2, short_tiles(4) | kOneKeyTile, kMaskTensor, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 32, 32, 1, 64, 2, short_tiles(4) | kOneKeyTile, kDropout, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 32, 32, 1, 64, 2, short_tiles(4) | kOneKeyTile | kFixedMax, kSoftcap, 0}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 1, 64, 0, 0, 0, 0}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 1, 64, 0, 0, kMaskTensor, 0}>(),
    mask_list_kernel<Sm90ForwardConfig{bf16, 0, 0, 1, 64, 0, 0, 0, 0}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 128, 0, 0, 0, 0}>(),
    combine_kernel<MergeConfig{bf16, 16}>(),
    prepare_kernel<CachePrepareConfig{bf16}>(),
    prepare_kernel<CachePrepareConfig{f16}>(),
    summary_kernel<MaskSummaryConfig{f32, 0}>(),
    summary_kernel<MaskSummaryConfig{f32, 1}>(),
    mask_list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 64, 0, 0, 0, 0}>(),
    mask_list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 128, 0, 0, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 64, 4, kNoTurns, kMaskTensor, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 64, 4, kNoTurns, kMaskTensor, kTileList}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 128, 0, 0, kMaskTensor, 0}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 3, 64, 0, 0, kMaskTensor, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 3, 64, 4, kPinWait | kFirstMax, kMaskTensor, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 3, 64, 2, kNoTurns, kMaskTensor, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 3, 64, 4, kPinWait | kFirstMax, kMaskTensor, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 2, 128, 2, kPinWait | kFirstMax, kMaskTensor, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 2, 128, 2, kPinWait | kFirstMax, kMaskTensor, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 2, 128, 2, kPinWait | kFirstMax, kMaskTensor, kSplitKeys}>(),
    mask_list_kernel<Sm90ForwardConfig{bf16, 0, 0, 3, 64, 0, 0, 0, 0}>(),
    combine_kernel<MergeConfig{bf16, 32}>(),
    sm90_backward_mask_list_kernel<Sm90BackwardConfig{bf16, 0, 0, 64, 3, 0, 0, 0}>(),
    sm90_dq_mask_list_kernel<Sm90DqConfig{bf16, 0, 0, 2, 64, 0, 0, 0, 0, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 3, 4, 0, kMaskTensor}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 3, 4, 1, kMaskTensor}>(),
    sm90_dq_kernel<Sm90DqConfig{bf16, 64, 64, 2, 64, 4, 4, 2, 0, kMaskTensor}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 2, 4, 0, kScaleFirst}>(),
    sm90_dq_kernel<Sm90DqConfig{bf16, 64, 64, 3, 64, 4, 4, 2, 0, kScaleFirst}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 128, 128, 64, 2, 4, 1, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 128, 128, 64, 2, 3, 1, kDropout}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 128, 128, 64, 2, 3, 1, kSoftcap}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 32, 32, 64, 1, 2, kStoresDq, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 32, 32, 64, 1, 2, kStoresDq, kBias}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 1, 4, kStoresDq, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 1, 4, kStoresDq, kDropout}>(),
    sm90_backward_kernel<Sm90BackwardConfig{f16, 64, 64, 64, 1, 4, kStoresDq, kSoftcap | kDropout}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 2, 4, kStoresDq, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 2, 4, kStoresDq, kSoftcap}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 3, 4, kStoresDq, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 2, 4, kKeepsDq, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 64, 64, 64, 3, 4, kKeepsDq, 0}>(),
    sm90_backward_kernel<Sm90BackwardConfig{bf16, 128, 128, 64, 2, 4, kKeepsDq, 0}>(),
    backward_prepare_kernel<BackwardConfig{bf16, 32, 32, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_prepare_kernel<BackwardConfig{bf16, 128, 128, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{bf16, 128, 128, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{bf16, 128, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_prepare_kernel<BackwardConfig{bf16, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_prepare_kernel<BackwardConfig{f16, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{bf16, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{bf16, 64, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
};

}  // namespace

std::string run_forward_kernel(const char* program, const void* params, const Grid& grid, int threads,
                               size_t shared_bytes, uint64_t seed) {
  return run_kernel(kForwardKernels, memory, program, params, grid, threads, shared_bytes, seed);
}

}  // namespace kernel_emulator
