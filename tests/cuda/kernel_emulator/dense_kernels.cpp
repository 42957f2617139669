// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_dense_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "portable/forward.h"
#include "portable/summarize_mask.h"
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
  int config[16];
  size_t ints;
  void (*run)(const void* params);
};
template <class Config>
constexpr DenseKernel named(const Config& c, void (*run)(const void*)) {
  DenseKernel kernel{{}, sizeof(Config) / sizeof(int), run};
  struct Ints {
    int values[sizeof(Config) / sizeof(int)];
  };
  const Ints ints = __builtin_bit_cast(Ints, c);
  for (size_t n = 0; n < kernel.ints; ++n) kernel.config[n] = ints.values[n];
  return kernel;
}
template <ForwardConfig C>
constexpr DenseKernel forward_kernel() {
  return named(C, [](const void* p) { forward<C>(*static_cast<const ForwardParams*>(p)); });
}
template <MaskSummaryConfig C>
constexpr DenseKernel mask_kernel() {
  return named(C, [](const void* p) { summarize_mask<C>(*static_cast<const MaskSummaryParams*>(p)); });
}
constexpr Element bf16 = Element::bf16, f32 = Element::f32;
// As plans for sm_90 choose them; the last int of a ForwardConfig are its options.
constexpr DenseKernel kKernels[] = {
    mask_kernel<MaskSummaryConfig{f32, 0}>(),
    mask_kernel<MaskSummaryConfig{f32, 1}>(),
    forward_kernel<ForwardConfig{f32, 32, 32, 64, 64, 4, 1, 2, 2, kCopyWhole, kMaskTensor}>(),
    forward_kernel<ForwardConfig{f32, 32, 32, 64, 64, 4, 1, 2, 2, kCopyWhole, kAllOptions}>(),
    forward_kernel<ForwardConfig{bf16, 128, 128, 64, 64, 4, 1, 1, 2, kCopyWhole, kMaskTensor}>(),
};

}  // namespace

std::string run_dense_kernel(const int* config, size_t ints, const void* params, int64_t ctas, int threads,
                             size_t shared_bytes, uint64_t seed) {
  for (const DenseKernel& kernel : kKernels) {
    if (kernel.ints != ints || std::memcmp(kernel.config, config, ints * sizeof(int)) != 0) continue;
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
  text << "this program does not contain the kernel";
  for (size_t n = 0; n < ints; ++n) text << (n ? "," : " ") << config[n];
  return text.str();
}

}  // namespace kernel_emulator
