// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_dbias_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "portable/backward_prepare.h"
#include "sm90/dbias/dbias.h"
// clang-format on
#undef cuflash

#include "tests/cuda/kernel_emulator/dbias_kernel.h"
#include "tests/cuda/kernel_emulator/run_kernel.h"

namespace host_dbias_kernels {
alignas(1024) unsigned char memory[(size_t{228} << 10) + 128];
}  // namespace host_dbias_kernels

namespace kernel_emulator {
namespace {

using namespace host_dbias_kernels;

template <Sm90DbiasConfig C>
EmulatedKernel dbias_kernel() {
  return {"sm90_dbias<", text_of(C), [](const void* p) { sm90_dbias<C>(*static_cast<const Sm90BackwardParams*>(p)); }};
}
template <BackwardConfig C>
EmulatedKernel prepare_kernel() {
  return {"backward_prepare<", text_of(C),
          [](const void* p) { backward_prepare<C>(*static_cast<const BackwardParams*>(p)); }};
}
constexpr Element bf16 = Element::bf16;
constexpr BackwardConfig prepare_config(int dim) { return {bf16, dim, dim, 64, 0, 0, 0, 0, 0, 0, kBias, 0, 0}; }
// Configs that plans for sm_90 choose.
const EmulatedKernel kDbiasKernels[] = {
    prepare_kernel<prepare_config(64)>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 2, 128, 4, kBias}>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 2, 128, 4, kBias | kScaleFirst}>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 1, 64, 4, kBias}>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 2, 64, 4, kSoftcap | kAlibi | kBias | kMaskTensor | kDropout}>(),
};

}  // namespace

std::string run_dbias_kernel(const char* program, const void* params, const Grid& grid, int threads,
                             size_t shared_bytes, uint64_t seed) {
  return run_kernel(kDbiasKernels, memory, program, params, grid, threads, shared_bytes, seed);
}

}  // namespace kernel_emulator
