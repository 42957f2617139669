// One call of attention on several threads, through a function found by dlopen or one that a plugin was linked with.
#pragma once

#include <cuflash/cuflash.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace cuflash::test {

// Values are all 1, so every element of the result is 1.
inline bool attends(decltype(&cuflash_forward) forward) {
  constexpr int64_t kHeads = 8, kLength = 128, kDim = 64;
  const std::vector<float> ones(kHeads * kLength * kDim, 1.0f);
  std::vector<float> o(ones.size(), 0.0f);
  const cuflash_tensor rows = {
      ones.data(), CUFLASH_F32, 4, {1, kHeads, kLength, kDim}, {kHeads * kLength * kDim, kLength * kDim, kDim, 1}};
  cuflash_attention attention;
  cuflash_attention_init(&attention);
  attention.q = attention.k = attention.v = rows;
  cuflash_forward_outputs outputs;
  cuflash_forward_outputs_init(&outputs);
  outputs.o = {
      o.data(), CUFLASH_F32, 4, {1, kHeads, kLength, kDim}, {kHeads * kLength * kDim, kLength * kDim, kDim, 1}};
  cuflash_execution execution;
  cuflash_execution_init(&execution);
  execution.num_threads = 4;
  if (forward(&attention, &outputs, &execution) != CUFLASH_OK) return false;
  for (const float x : o)
    if (!(std::abs(x - 1) < 1e-5f)) return false;
  return true;
}

}  // namespace cuflash::test
