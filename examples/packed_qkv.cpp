// Q, K and V as views of one [batch, length, 3, heads, dim] buffer, as a fused projection writes it, with their
// gradients in one buffer of the same shape. Nothing is copied: a view is a pointer and strides.
#include <cuflash/flash_attention.h>

#include <cstdio>

#include "direct.h"

namespace {

constexpr int64_t kBatch = 2, kLength = 4, kHeads = 2, kDim = 3;
constexpr int64_t kToken = 3 * kHeads * kDim;  // elements from one token's Q, K and V to the next token's

// Part 0 is Q, 1 is K, 2 is V. The logical shape is [batch, heads, length, dim], whatever the memory order.
cuflash::Tensor part(std::vector<double>& qkv, int64_t which) {
  return {.data = qkv.data() + which * kHeads * kDim,
          .dtype = cuflash::DType::f64,
          .rank = 4,
          .shape = {kBatch, kHeads, kLength, kDim},
          .stride = {kLength * kToken, kDim, kToken, 1}};
}

// O of the whole problem from the definition, in memory order [batch, length, heads, dim].
std::vector<double> direct_output(const std::vector<double>& qkv) {
  std::vector<double> o;
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t i = 0; i < kLength; ++i)
      for (int64_t h = 0; h < kHeads; ++h) {
        const double* first = &qkv[b * kLength * kToken + h * kDim];
        const DirectRow row =
            direct_row(first + i * kToken, first + kHeads * kDim, first + 2 * kHeads * kDim, kLength, kToken, kDim);
        o.insert(o.end(), row.o.begin(), row.o.end());
      }
  return o;
}

}  // namespace

int main() try {
  auto qkv = random_values<double>(kBatch * kLength * kToken, 1);
  auto dout = random_values<double>(kBatch * kLength * kHeads * kDim, 2);
  std::vector<double> o(dout.size()), lse(kBatch * kHeads * kLength), dqkv(qkv.size());
  const auto tokens = [](std::vector<double>& x) { return cuflash::bshd(x.data(), kBatch, kLength, kHeads, kDim); };
  const auto lse_view = cuflash::contiguous(lse.data(), kBatch, kHeads, kLength);

  const cuflash::Attention attention{.q = part(qkv, 0), .k = part(qkv, 1), .v = part(qkv, 2)};
  cuflash::flash_attention_forward(attention, {.o = tokens(o), .lse = lse_view});
  cuflash::flash_attention_backward(attention, {.o = tokens(o),
                                                .lse = lse_view,
                                                .dout = tokens(dout),
                                                .dq = part(dqkv, 0),
                                                .dk = part(dqkv, 1),
                                                .dv = part(dqkv, 2)});

  double error = distance(o.data(), direct_output(qkv).data(), kBatch * kLength * kHeads * kDim);
  for (size_t n = 0; n < qkv.size(); ++n) {  // the derivative of <O, dO> with respect to every element
    auto above = qkv, below = qkv;
    above[n] += 1e-5, below[n] -= 1e-5;
    const auto o_above = direct_output(above), o_below = direct_output(below);
    double slope = 0;
    for (size_t m = 0; m < dout.size(); ++m) slope += dout[m] * (o_above[m] - o_below[m]) / 2e-5;
    error = std::max(error, distance(&dqkv[n], &slope, 1));
  }
  std::printf("packed QKV, output and gradients in place: largest error %.1e\n", error);
  return error < 1e-7 ? 0 : 1;
} catch (const cuflash::FlashAttentionError& error) {
  std::fprintf(stderr, "%s: %s\n", cuflash_status_name(error.status()), error.what());
  return 1;
}
