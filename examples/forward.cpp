// Causal attention with grouped heads: eight query heads share two key/value heads, memory is [batch, length, heads, dim].
#include <cuflash/flash_attention.h>

#include <cstdio>

#include "direct.h"

namespace {

constexpr int64_t kBatch = 2, kHeads = 8, kHeadsK = 2, kLength = 100, kDim = 64;

// Checks O and LSE of every query against the definition. Query i sees keys 0 .. i.
double largest_error(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                     const std::vector<float>& o, const std::vector<float>& lse) {
  double largest = 0;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t i = 0; i < kLength; ++i) {
        const int64_t row = ((b * kLength + i) * kHeads + h) * kDim;
        const int64_t head = (b * kLength * kHeadsK + h / (kHeads / kHeadsK)) * kDim;
        const DirectRow expected = direct_row(&q[row], &k[head], &v[head], i + 1, kHeadsK * kDim, kDim);
        largest = std::max(largest, distance(&o[row], expected.o.data(), kDim));
        largest = std::max(largest, distance(&lse[(b * kHeads + h) * kLength + i], &expected.lse, 1));
      }
  return largest;
}

}  // namespace

int main() try {
  const auto q = random_values<float>(kBatch * kLength * kHeads * kDim, 1);
  const auto k = random_values<float>(kBatch * kLength * kHeadsK * kDim, 2);
  const auto v = random_values<float>(kBatch * kLength * kHeadsK * kDim, 3);
  std::vector<float> o(q.size()), lse(kBatch * kHeads * kLength);

  cuflash::flash_attention_forward({.q = cuflash::bshd(q.data(), kBatch, kLength, kHeads, kDim),
                                    .k = cuflash::bshd(k.data(), kBatch, kLength, kHeadsK, kDim),
                                    .v = cuflash::bshd(v.data(), kBatch, kLength, kHeadsK, kDim),
                                    .causal = true},
                                   {.o = cuflash::bshd(o.data(), kBatch, kLength, kHeads, kDim),
                                    .lse = cuflash::contiguous(lse.data(), kBatch, kHeads, kLength)});

  const double error = largest_error(q, k, v, o, lse);
  std::printf("causal, %d query heads on %d key heads: largest error of O and LSE %.1e\n", int{kHeads}, int{kHeadsK},
              error);
  return error < 1e-5 ? 0 : 1;
} catch (const cuflash::FlashAttentionError& error) {
  std::fprintf(stderr, "%s: %s\n", cuflash_status_name(error.status()), error.what());
  return 1;
}
