// The head sizes that kernels are compiled for. Heads are padded to the next of them, so that few kernels serve all
// sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace cuflash::cuda {

inline constexpr int kHeadSizes[] = {32, 64, 96, 128, 192, 256, 512, 576};
inline constexpr int64_t kLargestHeadSize = 256;        // forward and backward
inline constexpr int64_t kLargestCachedHeadSize = 576;  // over a KV cache

// dim: at most the largest.
constexpr int padded_head_size(int64_t dim) {
  return *std::find_if(std::begin(kHeadSizes), std::end(kHeadSizes), [&](int size) { return size >= dim; });
}

}  // namespace cuflash::cuda
