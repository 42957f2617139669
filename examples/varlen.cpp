// Three sequences of different lengths, one of them empty, packed without padding: [total, heads, dim], with the first
// row of each in cu_seqlens. The lengths of queries and keys may differ.
#include <cuflash/flash_attention.h>

#include <cstdio>

#include "direct.h"

int main() try {
  constexpr int64_t kHeads = 2, kDim = 16, kSequences = 3;
  const std::vector<int32_t> cu_q{0, 7, 7, 40}, cu_k{0, 9, 14, 64};
  const int64_t total_q = cu_q.back(), total_k = cu_k.back(), token = kHeads * kDim;
  const auto q = random_values<float>(total_q * token, 1);
  const auto k = random_values<float>(total_k * token, 2);
  const auto v = random_values<float>(total_k * token, 3);
  std::vector<float> o(q.size()), lse(static_cast<size_t>(kHeads * total_q));

  cuflash::flash_attention_forward(
      {.q = cuflash::thd(q.data(), total_q, kHeads, kDim),
       .k = cuflash::thd(k.data(), total_k, kHeads, kDim),
       .v = cuflash::thd(v.data(), total_k, kHeads, kDim),
       .causal = true,
       .cu_seqlens_q = cuflash::contiguous(cu_q.data(), kSequences + 1),
       .cu_seqlens_k = cuflash::contiguous(cu_k.data(), kSequences + 1)},
      {.o = cuflash::thd(o.data(), total_q, kHeads, kDim), .lse = cuflash::contiguous(lse.data(), kHeads, total_q)});

  double error = 0;
  for (size_t b = 0; b < kSequences; ++b) {
    const int64_t queries = cu_q[b + 1] - cu_q[b], keys = cu_k[b + 1] - cu_k[b];
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t row = (cu_q[b] + i) * token + h * kDim, first_key = cu_k[b] * token + h * kDim;
        const int64_t visible = i + 1 + keys - queries;  // causal, with the last query aligned to the last key
        const DirectRow expected = direct_row(&q[row], &k[first_key], &v[first_key], visible, token, kDim);
        error = std::max(error, distance(&o[row], expected.o.data(), kDim));
        error = std::max(error, distance(&lse[h * total_q + cu_q[b] + i], &expected.lse, 1));
      }
  }
  std::printf("%lld packed sequences: largest error of O and LSE %.1e\n", static_cast<long long>(kSequences), error);
  return error < 1e-5 ? 0 : 1;
} catch (const cuflash::FlashAttentionError& error) {
  std::fprintf(stderr, "%s: %s\n", cuflash_status_name(error.status()), error.what());
  return 1;
}
