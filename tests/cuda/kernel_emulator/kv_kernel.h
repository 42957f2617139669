// The kernel of attention over a KV cache, run by the host: every line of it but the instructions in kernels/ptx.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kernel_emulator {

struct Grid {
  unsigned x, y, z;

  int64_t ctas() const { return int64_t{x} * y * z; }
};

// config: the ints of a KvConfig. params: a KvParams. CTAs run one after the other, in an order that the seed
// decides. Answers "" or what is wrong: a config that this program has not, more shared memory used than launched with.
std::string run_cache_kernel(const int* config, size_t ints, const void* params, const Grid& grid, int threads,
                             size_t shared_bytes, uint64_t seed);
// Likewise, for a MergeConfig and MergeParams.
std::string run_merge_kernel(const int* config, size_t ints, const void* params, const Grid& grid, int threads,
                             uint64_t seed);

}  // namespace kernel_emulator
