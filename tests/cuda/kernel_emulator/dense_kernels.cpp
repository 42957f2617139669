// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_dense_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "portable/forward.h"
#include "portable/summarize_mask.h"
#include "portable/backward.h"
#include "portable/backward_bias.h"
#include "portable/backward_prepare.h"
#undef __shared__
#define __shared__ static  // one CTA runs at a time
#include "portable/backward_finish.h"
// clang-format on
#undef cuflash

#include <sstream>

#include "tests/cuda/kernel_emulator/dense_kernels.h"

namespace host_dense_kernels {
constexpr size_t kSharedBytes = size_t{228} << 10;
alignas(1024) unsigned char memory[kSharedBytes + 128];
}  // namespace host_dense_kernels

namespace kernel_emulator {

void set_thread_number(unsigned x) { threadIdx.x = x; }

namespace {

using namespace host_dense_kernels;

struct DenseKernel {
  const char* name;
  int config[16];
  size_t ints;
  void (*run)(const void* params);
};
template <class Config>
constexpr DenseKernel named(const char* name, const Config& c, void (*run)(const void*)) {
  DenseKernel kernel{name, {}, sizeof(Config) / sizeof(int), run};
  struct Ints {
    int values[sizeof(Config) / sizeof(int)];
  };
  const Ints ints = __builtin_bit_cast(Ints, c);
  for (size_t n = 0; n < kernel.ints; ++n) kernel.config[n] = ints.values[n];
  return kernel;
}
template <ForwardConfig C>
constexpr DenseKernel forward_kernel() {
  return named("forward", C, [](const void* p) { forward<C>(*static_cast<const ForwardParams*>(p)); });
}
template <MaskSummaryConfig C>
constexpr DenseKernel mask_kernel() {
  return named("summarize_mask", C,
               [](const void* p) { summarize_mask<C>(*static_cast<const MaskSummaryParams*>(p)); });
}
#define CUFLASH_BACKWARD_KERNEL(kernel)                                                                 \
  template <BackwardConfig C>                                                                           \
  constexpr DenseKernel kernel##_kernel() {                                                             \
    return named(#kernel, C, [](const void* p) { kernel<C>(*static_cast<const BackwardParams*>(p)); }); \
  }
CUFLASH_BACKWARD_KERNEL(backward)
CUFLASH_BACKWARD_KERNEL(backward_bias)
CUFLASH_BACKWARD_KERNEL(backward_prepare)
CUFLASH_BACKWARD_KERNEL(backward_finish)
#undef CUFLASH_BACKWARD_KERNEL
constexpr Element bf16 = Element::bf16, f32 = Element::f32;
// Configs that plans for sm_90 choose; the last int of a ForwardConfig has its options.
constexpr DenseKernel kKernels[] = {
    mask_kernel<MaskSummaryConfig{f32, 0}>(),
    mask_kernel<MaskSummaryConfig{f32, 1}>(),
    forward_kernel<ForwardConfig{f32, 32, 32, 64, 64, 4, 1, 2, 2, kCopyWhole, kMaskTensor}>(),
    forward_kernel<ForwardConfig{f32, 32, 32, 64, 64, 4, 1, 2, 2, kCopyWhole, kAllOptions}>(),
    forward_kernel<ForwardConfig{bf16, 128, 128, 64, 64, 4, 1, 1, 2, kCopyWhole, kMaskTensor}>(),
    backward_prepare_kernel<BackwardConfig{f32, 32, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_finish_kernel<BackwardConfig{f32, 32, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0}>(),
    backward_kernel<BackwardConfig{f32, 32, 32, 32, 64, 4, 1, 2, 2, kCopyWhole, kMaskTensor, 0, 0}>(),
    backward_kernel<BackwardConfig{f32, 32, 32, 32, 64, 4, 1, 2, 2, kCopyWhole, kMaskTensor, 1, 0}>(),
    backward_kernel<BackwardConfig{f32, 32, 32, 32, 64, 4, 1, 2, 2, kCopyWhole, kAllOptions, 1, 0}>(),
    backward_bias_kernel<BackwardConfig{f32, 32, 32, 32, 64, 4, 1, 1, 2, kCopyWhole, kAllOptions, 0, 0}>(),
};

}  // namespace

std::string run_dense_kernel(const char* name, const int* config, size_t ints, const void* params, int64_t ctas,
                             int threads, size_t shared_bytes, uint64_t seed) {
  for (const DenseKernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) != 0 || kernel.ints != ints ||
        std::memcmp(kernel.config, config, ints * sizeof(int)) != 0)
      continue;
    for (int64_t n = 0; n < ctas; ++n) {
      std::memset(memory, 0xff, sizeof memory);  // NaN, which must stay beyond the size of the launch
      gridDim = {static_cast<unsigned>(ctas), 1, 1};
      blockIdx = {static_cast<unsigned>(n), 0, 0};
      run_threads(threads, seed + static_cast<uint64_t>(n), [&] { kernel.run(params); });
      for (size_t byte = shared_bytes; byte < sizeof memory; ++byte)
        if (memory[byte] != 0xff) return "the kernel writes beyond the shared memory of its launch";
    }
    return "";
  }
  std::ostringstream text;
  text << "this program does not contain the kernel " << name;
  for (size_t n = 0; n < ints; ++n) text << (n ? "," : " ") << config[n];
  return text.str();
}

}  // namespace kernel_emulator
