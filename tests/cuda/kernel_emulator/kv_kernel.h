// Runs the KV-cache kernels on the host: every line of them except the instructions in kernels/ptx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kernel_emulator {

struct Grid {
  unsigned x, y, z;

  int64_t ctas() const { return int64_t{x} * y * z; }
};

// config: the ints of a KvConfig. params: a KvParams, or Sm90KvParams. CTAs run one after the other in an order given
// by the seed, or interleaved if they exchange partials. Returns "" or what went wrong: a config that this program does
// not contain, or writes beyond the shared memory of the launch.
std::string run_cache_kernel(const int* config, size_t ints, const void* params, const Grid& grid, int threads,
                             size_t shared_bytes, uint64_t seed);
// run_cache_kernel for a MergeConfig and MergeParams.
std::string run_merge_kernel(const int* config, size_t ints, const void* params, const Grid& grid, int threads,
                             uint64_t seed);

}  // namespace kernel_emulator
