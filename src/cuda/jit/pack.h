// Packs: kernels compiled ahead of time, for machines without a compiler. Writing one needs no GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/jit/binaries.h"
#include "cuda/jit/kernel_key.h"

namespace cuflash::cuda {

// Reports progress. Several threads call it, one at a time.
using PackProgress = std::function<void(size_t done, size_t total, const std::string& kernel)>;

// Compiles the kernels, or takes them from the disk cache, with this many threads, and replaces the file atomically.
// Throws the first error of any kernel, or CUFLASH_INVALID_ARGUMENT if the file cannot be written. Returns its size.
size_t write_pack(const std::vector<KernelKey>& kernels, Binaries& binaries, int threads, const std::string& path,
                  const PackProgress& progress);

}  // namespace cuflash::cuda
