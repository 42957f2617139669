// Gradients against central differences of the library's own forward pass, in f64.
#include <cmath>
#include <numeric>

#include "check/cases/memory.h"
#include "error.h"
#include "property.h"
#include "tests/shared/device.h"

namespace cuflash::check {
namespace {

// <dO, O> + <dLSE, LSE>: the function whose gradients the backward call returns.
double loss(CaseMemory& memory) {
  memory.start_forward();
  forward(memory.device(), memory.attention(), memory.forward_outputs(true), {.num_threads = 1});
  const std::vector<double> o = memory.o.read(), dout = memory.dout.read();
  double sum = std::inner_product(o.begin(), o.end(), dout.begin(), 0.0);
  if (!memory.dlse) return sum;
  const std::vector<double> lse = memory.lse.read(), dlse = memory.dlse.read();
  for (size_t n = 0; n < lse.size(); ++n)
    if (std::isfinite(lse[n])) sum += dlse[n] * lse[n];  // -inf: a query without keys, whatever the inputs are
  return sum;
}

// Compares the gradient along a random direction with the slope of the loss; returns "" if they agree.
std::string wrong_slope(CaseMemory& memory, const char* name, GuardedTensor& input, const GuardedTensor& gradient,
                        Random& random) {
  if (!gradient) return "";
  constexpr double kStep = 1e-5;
  const std::vector<double> at = input.read(), slopes = gradient.read();
  std::vector<double> direction(at.size());
  for (double& x : direction) x = random.normal();
  const auto loss_at = [&](double step) {
    std::vector<double> moved = at;
    for (size_t n = 0; n < at.size(); ++n) moved[n] += step * direction[n];
    input.write(moved);
    return loss(memory);
  };
  const double above = loss_at(kStep), below = loss_at(-kStep);
  input.write(at);

  double slope = 0, magnitude = 0;
  for (size_t n = 0; n < at.size(); ++n) {
    slope += slopes[n] * direction[n];
    magnitude += std::abs(slopes[n] * direction[n]);
  }
  const double difference = (above - below) / (2 * kStep);
  const double allowed = 2e-6 * magnitude + 1e-8 * (1 + std::abs(above));
  if (std::abs(difference - slope) <= allowed) return "";
  return join(name, ": the loss changes by ", difference, ", the gradient says ", slope, " (allowed ", allowed, ")");
}

Case differentiable_case(Choices& choices) {
  Case c = draw_case(choices, test::test_limits(10'000));
  c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = c.bias_dtype = c.sink_dtype = DType::f64;
  c.flavour = Flavour::normal;
  c.garbage = c.live_nan = false;
  for (Layout* layout : {&c.q, &c.k, &c.v}) layout->repeat_batch = layout->repeat_heads = false;
  c.gradients = c.every_gradient();
  c.dlse_given = choices.chance(2);
  return c;
}

// The first wrong gradient of a case, or "".
std::string wrong_gradient(const Case& c) {
  CaseMemory memory(c);
  loss(memory);
  memory.start_backward();
  backward(memory.device(), memory.attention(), memory.backward_tensors(), {.num_threads = 1});
  Random random(c.data_seed + 1);
  for (const std::string& text :
       {wrong_slope(memory, "dq", memory.q, memory.dq, random), wrong_slope(memory, "dk", memory.k, memory.dk, random),
        wrong_slope(memory, "dv", memory.v, memory.dv, random),
        wrong_slope(memory, "dbias", memory.bias, memory.dbias, random),
        wrong_slope(memory, "dsink", memory.sink, memory.dsink, random)})
    if (!text.empty()) return text + " | " + describe(c);
  return "";
}

TEST(Property, GradientsEqualFiniteDifferences) {
  test::property("gradients equal finite differences", 1000,
                 [](Choices& choices) { return wrong_gradient(differentiable_case(choices)); });
}

// Covers every option alone, and a bias that repeats in every set of dimensions, alone and with all other options.
// Random problems reach these only one by one.
TEST(Gradients, OfEveryOptionEqualFiniteDifferences) {
  const auto plain = [] {
    Case c;
    c.device = test::test_limits(1).device;
    c.batch = 2, c.heads_q = 4, c.heads_k = 2, c.len_q = 21, c.len_k = 35, c.dim = 8, c.dim_v = 5;
    c.dtype = c.o_dtype = c.dout_dtype = c.gradient_dtype = c.bias_dtype = c.sink_dtype = DType::f64;
    return c;
  };
  const auto softcap = [](Case& c) { c.softcap = 2; };
  const auto alibi = [](Case& c) { c.alibi_rank = 1; };
  const auto dropout = [](Case& c) { c.dropout_p = 0.3, c.dropout_seed = 11; };
  const auto sink = [](Case& c) { c.sink = true; };
  const auto mask = [](Case& c) { c.mask.emplace(), c.mask_eighths = 5; };
  const auto causal = [](Case& c) { c.causal = true; };
  const std::initializer_list<void (*)(Case&)> options{softcap, alibi, dropout, sink, mask, causal};
  for (const auto option : options) {
    Case c = plain();
    option(c);
    c.gradients = c.every_gradient();
    EXPECT_EQ(wrong_gradient(c), "");
  }
  for (const bool all : {false, true})
    for (const Extent batch : {Extent::full, Extent::one})
      for (const Extent heads : {Extent::full, Extent::one, Extent::repeated})
        for (const Extent rows : {Extent::full, Extent::one, Extent::repeated}) {
          Case c = plain();
          c.bias.emplace();
          c.bias->extents = {batch, heads, rows};
          if (all)
            for (const auto option : options) option(c);
          c.gradients = c.every_gradient();
          EXPECT_EQ(wrong_gradient(c), "");
        }
}

}  // namespace
}  // namespace cuflash::check
