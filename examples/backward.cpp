// Gradients of the loss <O, dO>. The forward pass saves O and LSE, the backward pass recomputes the rest. Every element
// of dQ, dK and dV is compared with a central difference of the loss, computed from the definition.
#include <cuflash/flash_attention.h>

#include <cstdio>
#include <numeric>

#include "direct.h"

namespace {

constexpr int64_t kQueries = 3, kKeys = 5, kDim = 4;
using Values = std::vector<double>;

double loss(const Values& q, const Values& k, const Values& v, const Values& dout) {
  double sum = 0;
  for (int64_t i = 0; i < kQueries; ++i) {
    const DirectRow row = direct_row(&q[i * kDim], k.data(), v.data(), kKeys, kDim, kDim);
    sum = std::inner_product(row.o.begin(), row.o.end(), &dout[i * kDim], sum);
  }
  return sum;
}

// The derivative of the loss with respect to every element of one of its arguments, `values`.
template <class Loss>
Values slopes(Values& values, Loss loss_now) {
  const double step = 1e-5;
  Values result;
  for (double& value : values) {
    const double before = value;
    value = before + step;
    const double above = loss_now();
    value = before - step;
    result.push_back((above - loss_now()) / (2 * step));
    value = before;
  }
  return result;
}

}  // namespace

int main() try {
  Values q = random_values<double>(kQueries * kDim, 1), k = random_values<double>(kKeys * kDim, 2);
  Values v = random_values<double>(kKeys * kDim, 3), dout = random_values<double>(kQueries * kDim, 4);
  Values o(q.size()), lse(kQueries), dq(q.size()), dk(k.size()), dv(v.size());
  const auto queries = [](Values& x) { return cuflash::bhsd(x.data(), 1, 1, kQueries, kDim); };
  const auto keys = [](Values& x) { return cuflash::bhsd(x.data(), 1, 1, kKeys, kDim); };
  const auto lse_view = cuflash::contiguous(lse.data(), 1, 1, kQueries);

  // One description serves both calls: a backward that differs from its forward in an option would be silently wrong.
  const cuflash::Attention attention{.q = queries(q), .k = keys(k), .v = keys(v)};
  cuflash::flash_attention_forward(attention, {.o = queries(o), .lse = lse_view});
  cuflash::flash_attention_backward(
      attention,
      {.o = queries(o), .lse = lse_view, .dout = queries(dout), .dq = queries(dq), .dk = keys(dk), .dv = keys(dv)});

  const auto loss_now = [&] { return loss(q, k, v, dout); };
  const double error = std::max({distance(dq.data(), slopes(q, loss_now).data(), kQueries * kDim),
                                 distance(dk.data(), slopes(k, loss_now).data(), kKeys * kDim),
                                 distance(dv.data(), slopes(v, loss_now).data(), kKeys * kDim)});
  std::printf("gradients against central differences: largest error %.1e\n", error);
  return error < 1e-7 ? 0 : 1;
} catch (const cuflash::FlashAttentionError& error) {
  std::fprintf(stderr, "%s: %s\n", cuflash_status_name(error.status()), error.what());
  return 1;
}
