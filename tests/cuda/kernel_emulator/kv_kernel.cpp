// Kernels and the library share names in namespace cuflash, so the kernels get another namespace here.
#define cuflash host_kernels
// clang-format off
#include "tests/cuda/kernel_emulator/cuda.h"
#include "kv/attention.h"
#include "kv/sm90_attention.h"
#include "kv/merge_states.h"
// clang-format on
#undef cuflash

#include <sstream>
#include <vector>

#include "tests/cuda/kernel_emulator/kv_kernel.h"
#include "tests/cuda/kernel_emulator/run_kernel.h"

namespace host_kernels {
constexpr size_t kSharedBytes = size_t{228} << 10;
alignas(1024) unsigned char memory[kSharedBytes + 128];
}  // namespace host_kernels

namespace kernel_emulator {

void set_thread_number(unsigned x) { threadIdx.x = x; }

namespace {

using namespace host_kernels;

template <class Params>
using Kernel = void (*)(const Params&);

// run or run_tma is set, depending on kCopyTma in the config.
struct CacheKernel {
  KvConfig config;
  Kernel<KvParams> run;
  Kernel<Sm90KvParams> run_tma;
};
template <KvConfig C>
constexpr CacheKernel cache_kernel() {
  if constexpr (C.copy == kCopyTma) return {C, nullptr, [](const Sm90KvParams& p) { sm90_kv<C>(p); }};
  else return {C, [](const KvParams& p) { kv_attention<C>(p); }, nullptr};
}
constexpr Element bf16 = Element::bf16, f16 = Element::f16, f32 = Element::f32, f64 = Element::f64;
// dim_qk, dim_v, tile_q, tile_k, row, key and column warps, stages, CTAs per SM, copy, options, v_in_k, fast_decode,
// l2_exchange: as plans for sm_90 choose them.
constexpr CacheKernel kCacheKernels[] = {
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 8, 1, 3, 0, 0, 1, 0}>(),    //
    cache_kernel<KvConfig{bf16, 576, 512, 16, 32, 1, 2, 2, 4, 1, 3, 0, 1, 1, 1}>(),  //
    cache_kernel<KvConfig{bf16, 576, 512, 32, 32, 2, 1, 2, 4, 1, 3, 0, 1, 1, 1}>(),  //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 8, 1, 3, 0, 0, 1, 1}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 32, 64, 2, 4, 1, 8, 1, 3, 3, 0, 1, 1}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 32, 64, 2, 4, 1, 8, 1, 3, 3, 0, 1, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 8, 1, 3, 0, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 8, 1, 3, 3, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 32, 64, 2, 2, 1, 8, 1, 3, 3, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{f16, 64, 64, 16, 64, 1, 4, 1, 8, 1, 3, 0, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{bf16, 128, 64, 16, 64, 1, 4, 1, 8, 1, 3, 0, 1, 0, 0}>(),   //
    cache_kernel<KvConfig{bf16, 128, 64, 16, 64, 1, 4, 1, 4, 2, 3, 0, 1, 0, 0}>(),
    cache_kernel<KvConfig{f16, 64, 64, 16, 128, 1, 4, 1, 3, 2, 3, 0, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 64, 64, 128, 64, 8, 1, 1, 8, 1, 3, 3, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 64, 64, 256, 64, 8, 1, 1, 8, 1, 3, 3, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 128, 128, 128, 64, 8, 1, 1, 6, 1, 3, 0, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 128, 128, 256, 64, 8, 1, 1, 5, 1, 3, 0, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 64, 128, 128, 64, 8, 1, 1, 8, 1, 3, 0, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 128, 64, 256, 64, 8, 1, 1, 6, 1, 3, 0, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 576, 512, 16, 32, 1, 2, 2, 4, 1, 3, 0, 1, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 64, 64, 32, 64, 2, 2, 1, 4, 2, 3, 3, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 4, 2, 3, 3, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 256, 256, 16, 64, 1, 4, 1, 3, 1, 3, 0, 0, 0, 0}>(),
    cache_kernel<KvConfig{bf16, 256, 256, 16, 64, 1, 4, 1, 3, 1, 2, 0, 0, 0, 0}>(),  //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 128, 1, 4, 1, 3, 2, 3, 0, 0, 0, 0}>(),   //
    cache_kernel<KvConfig{bf16, 576, 512, 16, 32, 1, 2, 2, 4, 1, 2, 0, 1, 0, 0}>(),  //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 3, 3, 1, 3, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 3, 3, 2, 0, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 3, 3, 2, 3, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 4, 3, 1, 3, 1, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 16, 64, 1, 4, 1, 4, 3, 2, 0, 1, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 64, 64, 32, 64, 2, 2, 1, 3, 3, 2, 3, 0, 0, 0}>(),    //
    cache_kernel<KvConfig{bf16, 96, 64, 16, 64, 1, 4, 1, 4, 2, 2, 0, 1, 0, 0}>(),    //
    cache_kernel<KvConfig{f16, 64, 64, 16, 64, 1, 4, 1, 3, 3, 0, 0, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f16, 64, 64, 32, 64, 2, 2, 1, 3, 3, 0, 0, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f16, 64, 64, 64, 64, 4, 1, 1, 4, 2, 0, 0, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f32, 32, 64, 16, 64, 1, 4, 1, 4, 2, 1, 3, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f32, 32, 64, 32, 32, 2, 2, 1, 4, 2, 1, 3, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f32, 32, 64, 64, 32, 4, 1, 1, 4, 2, 1, 3, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f32, 64, 32, 16, 64, 1, 4, 1, 4, 2, 2, 0, 0, 0, 0}>(),     //
    cache_kernel<KvConfig{f64, 32, 32, 16, 32, 1, 2, 2, 4, 1, 0, 0, 0, 0, 0}>(),     //
};

struct MergeKernel {
  MergeConfig config;
  Kernel<MergeParams> run;
};
template <MergeConfig C>
constexpr MergeKernel merge_kernel() {
  return {C, [](const MergeParams& p) { merge_states<C>(p); }};
}
constexpr MergeKernel kMergeKernels[] = {
    merge_kernel<MergeConfig{bf16, 8}>(),
    merge_kernel<MergeConfig{f32, 4}>(),
    merge_kernel<MergeConfig{f32, 32}>(),
    merge_kernel<MergeConfig{f64, 4}>(),
};

template <class Config>
bool is_config(const Config& c, const int* ints, size_t count) {
  return count * sizeof(int) == sizeof c && std::memcmp(&c, ints, sizeof c) == 0;
}

std::string missing(const int* config, size_t ints) {
  std::ostringstream text;
  text << "this program does not contain the kernel";
  for (size_t n = 0; n < ints; ++n) text << (n ? "," : " ") << config[n];
  return text.str();
}

template <class Params>
std::string run_ctas(Kernel<Params> kernel, const void* params, const Grid& grid, int threads, size_t shared_bytes,
                     uint64_t seed) {
  return kernel_emulator::run_ctas(memory, grid, threads, shared_bytes, seed,
                                   [&] { kernel(*static_cast<const Params*>(params)); });
}

// CTAs that wait for each other: each owns the one shared memory during its turn.
std::string run_cooperative(Kernel<Sm90KvParams> kernel, const void* params, const Grid& grid, int threads,
                            size_t shared_bytes, uint64_t seed) {
  std::vector<std::vector<unsigned char>> kept(static_cast<size_t>(grid.ctas()),
                                               std::vector<unsigned char>(sizeof memory, 0xff));
  std::string fault;
  run_ctas_interleaved(
      grid.ctas(), threads, seed, [&] { kernel(*static_cast<const Sm90KvParams*>(params)); },
      [&](int64_t n) {
        std::memcpy(memory, kept[static_cast<size_t>(n)].data(), sizeof memory);
        set_cta(grid, n);
      },
      [&](int64_t n) {
        std::memcpy(kept[static_cast<size_t>(n)].data(), memory, sizeof memory);
        if (fault.empty()) fault = overrun_of(memory, shared_bytes);
      });
  return fault;
}

}  // namespace

std::string run_cache_kernel(const int* config, size_t ints, const void* params, const Grid& grid, int threads,
                             size_t shared_bytes, uint64_t seed) {
  for (const CacheKernel& kernel : kCacheKernels)
    if (is_config(kernel.config, config, ints))
      return kernel.run ? run_ctas<KvParams>(kernel.run, params, grid, threads, shared_bytes, seed)
             : kernel.config.l2_exchange
                 ? run_cooperative(kernel.run_tma, params, grid, threads, shared_bytes, seed)
                 : run_ctas<Sm90KvParams>(kernel.run_tma, params, grid, threads, shared_bytes, seed);
  return missing(config, ints);
}
std::string run_merge_kernel(const int* config, size_t ints, const void* params, const Grid& grid, int threads,
                             uint64_t seed) {
  for (const MergeKernel& kernel : kMergeKernels)
    if (is_config(kernel.config, config, ints))
      return run_ctas<MergeParams>(kernel.run, params, grid, threads, 0, seed);
  return missing(config, ints);
}

}  // namespace kernel_emulator
