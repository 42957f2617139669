// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_forward_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "sm90/forward.h"
#include "sm90/combine_splits.h"
#include "sm90/tile_list.h"
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
constexpr Element bf16 = Element::bf16, f16 = Element::f16;
// As plans for sm_90 choose them.
constexpr int kNoTurns = kPinWait | kStoreBySmem | kPrefetchQ | kFirstMax;
const EmulatedKernel kForwardKernels[] = {
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 4, 64, 4, kNoTurns, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{f16, 64, 64, 4, 64, 4, kNoTurns, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 1, 128, 3, kPinWait | kFirstMax, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 128, 128, 2, 128, 2, kNoTurns, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3 | kFirstMax, 0, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3 | kFirstMax, 0, kSplitKeys | kPackHeads}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 128, 4, 3, kSoftcap | kAlibi | kDropout, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFixedMax, kSoftcap, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFirstMax, 0, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 1, 128, 4, kPinWait | kFirstMax, 0, 0}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 64, 64, 2, 64, 4, 3, kBias | kMaskTensor, kSplitKeys}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 192, 96, 2, 128, 2, 3 | kFirstMax, 0, kTileList}>(),
    forward_kernel<Sm90ForwardConfig{bf16, 96, 96, 2, 128, 2, kNoTurns, 0, kTileList}>(),
    list_kernel<Sm90ForwardConfig{bf16, 0, 0, 2, 128, 0, 0, 0, 0}>(),
    combine_kernel<MergeConfig{bf16, 16}>(),
};

}  // namespace

std::string run_forward_kernel(const char* program, const void* params, const Grid& grid, int threads,
                               size_t shared_bytes, uint64_t seed) {
  return run_kernel(kForwardKernels, memory, program, params, grid, threads, shared_bytes, seed);
}

}  // namespace kernel_emulator
