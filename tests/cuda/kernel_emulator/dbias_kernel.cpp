// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_dbias_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "portable/backward_prepare.h"
#include "sm90/dbias.h"
// clang-format on
#undef cuflash

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/kernel_emulator/dbias_kernel.h"

namespace host_dbias_kernels {
alignas(1024) unsigned char memory[(size_t{228} << 10) + 128];
}  // namespace host_dbias_kernels

namespace kernel_emulator {
namespace {

using namespace host_dbias_kernels;

struct DbiasKernel {
  std::string name, config;  // as the program writes them
  void (*run)(const void*);
};
template <class Config>
std::string text_of(const Config& c) {
  int ints[sizeof c / sizeof(int)];
  std::memcpy(ints, &c, sizeof c);
  std::string text = "{Element{" + std::to_string(ints[0]) + "}";
  for (size_t n = 1; n < std::size(ints); ++n) text += ", " + std::to_string(ints[n]);
  return text + "}";
}
template <Sm90DbiasConfig C>
DbiasKernel dbias_kernel() {
  return {"sm90_dbias<", text_of(C), [](const void* p) { sm90_dbias<C>(*static_cast<const Sm90BackwardParams*>(p)); }};
}
template <BackwardConfig C>
DbiasKernel prepare_kernel() {
  return {"backward_prepare<", text_of(C),
          [](const void* p) { backward_prepare<C>(*static_cast<const BackwardParams*>(p)); }};
}
constexpr Element bf16 = Element::bf16;
constexpr BackwardConfig prepare_config(int dim) { return {bf16, dim, dim, 64, 0, 0, 0, 0, 0, 0, kBias, 0, 0}; }
// As plans for sm_90 choose them.
const DbiasKernel kDbiasKernels[] = {
    prepare_kernel<prepare_config(64)>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 128, 4, kBias}>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 128, 4, kBias | kScaleFirst}>(),
    dbias_kernel<Sm90DbiasConfig{bf16, 64, 64, 64, 4, kSoftcap | kAlibi | kBias | kMaskTensor | kDropout}>(),
};

}  // namespace

std::string run_dbias_kernel(const char* program, const void* params, const Grid& grid, int threads,
                             size_t shared_bytes, uint64_t seed) {
  const std::string text = program;
  for (const DbiasKernel& kernel : kDbiasKernels) {
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
