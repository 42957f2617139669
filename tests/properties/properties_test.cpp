// The library against the oracle, its precision and its range. properties_gradients_test.cpp and
// properties_softmax_test.cpp hold the properties that need no oracle.
#include <algorithm>
#include <cmath>

#include "check/cases/memory.h"
#include "check/run/run.h"
#include "dtype.h"
#include "error.h"
#include "property.h"
#include "reference/oracle.h"
#include "tests/shared/device.h"

namespace cuflash::check {
namespace {

using test::property;

std::string with_case(const std::string& failure, const Case& c) {
  return failure.empty() ? "" : failure + " | " + describe(c);
}

TEST(Property, ForwardEqualsTheOracle) {
  property("forward equals the oracle", 1000, [](Choices& choices) {
    Case c = draw_case(choices, test::test_limits());
    c.gradients = {};
    return with_case(run_case(c), c);
  });
}

TEST(Property, GradientsEqualTheOracle) {
  property("gradients equal the oracle", 1000, [](Choices& choices) {
    Case c = draw_case(choices, test::test_limits());
    c.gradients = c.every_gradient();
    return with_case(run_case(c), c);
  });
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

// The largest finite magnitude that keeps every score below 1e30, in the type of q.
double extreme_magnitude(const Case& c) {
  const double of_scores = std::sqrt(1e30 / (std::abs(c.scale_value()) * static_cast<double>(c.dim)));
  return std::min(of_scores, c.dtype == DType::f16 ? 3e4 : 1e15);
}

void fill_extreme(GuardedTensor& t, double largest, Random& random) {
  t.for_each([&](const Index&, int64_t offset) {
    const double magnitude = std::pow(largest, random.uniform());
    t.set(offset, random.below(2) ? magnitude : -magnitude);
  });
}

std::string not_finite(const char* name, const GuardedTensor& t) {
  for (const double x : t.read())
    if (!std::isfinite(x)) return join(name, " holds ", x);
  return "";
}

std::string find_not_finite(const CaseMemory& memory, const Case& c) {
  for (const double x : memory.lse.read())
    if (std::isnan(x) || x > 1e38) return join("lse holds ", x);
  // O is a weighted mean of V, and dropout's factor may be on every one of its terms.
  const double bound = 1.01 * largest_magnitude(memory.v.read()) / (1 - c.dropout_p);
  for (const double x : memory.o.read())
    if (!(std::abs(x) <= bound)) return join("o holds ", x, ", but nothing in v is larger than ", bound);
  for (const std::string& text : {not_finite("dq", memory.dq), not_finite("dk", memory.dk), not_finite("dv", memory.dv),
                                  not_finite("dbias", memory.dbias), not_finite("dsink", memory.dsink)})
    if (!text.empty()) return text;
  return "";
}

TEST(Property, ExtremeInputsStayFinite) {
  property("extreme inputs stay finite", 1000, [](Choices& choices) {
    Case c = draw_case(choices, test::test_limits());
    c.garbage = c.live_nan = false;
    c.gradients = c.every_gradient();
    c.gradient_dtype = state_type(c.dtype);  // a gradient may be too large for f16
    const bool by_flavour = choices.chance(3);
    if (by_flavour) c.flavour = Flavour::large_logits;
    CaseMemory memory(c);
    Random random(c.data_seed);
    if (!by_flavour) {
      fill_extreme(memory.q, extreme_magnitude(c), random);
      fill_extreme(memory.k, extreme_magnitude(c), random);
    }
    call_both(memory);
    return with_case(find_not_finite(memory, c), c);
  });
}

struct Error {
  double mean = 0, largest = 0, largest_expected = 0;
};

Error error_of(const std::vector<double>& actual, const std::vector<double>& expected) {
  Error error;
  for (size_t n = 0; n < actual.size(); ++n) {
    const double distance = std::abs(actual[n] - expected[n]);
    error.mean += distance / static_cast<double>(actual.size());
    error.largest = std::max(error.largest, distance);
  }
  error.largest_expected = largest_magnitude(expected);
  return error;
}

// The spec's table for N(0, 1) inputs. ALiBi may make scores of hundreds of them, of which f32 has fewer digits.
std::string too_inexact(DType dtype, const Error& o, double largest_score) {
  switch (dtype) {
    case DType::f64: return o.largest <= 1e-12 * o.largest_expected ? "" : join("largest error of o ", o.largest);
    case DType::f32:
      return o.largest <= 1e-5 * std::max(1.0, largest_score / 50) ? "" : join("largest error of o ", o.largest);
    case DType::f16: return o.mean <= 1e-3 ? "" : join("mean error of o ", o.mean);
    default: return o.mean <= 4e-3 ? "" : join("mean error of o ", o.mean);
  }
}

std::string gradients_too_inexact(const Case& c, const CaseMemory& memory) {
  const auto expected = reference::oracle_backward(memory.attention(), memory.dout.view(), memory.dlse.view());
  const double largest =
      std::max({largest_magnitude(expected.dq), largest_magnitude(expected.dk), largest_magnitude(expected.dv)});
  const double allowed = (c.dtype == DType::f64 ? 1e-12 : 1e-4) * largest;
  const double errors[] = {error_of(memory.dq.read(), expected.dq).largest,
                           error_of(memory.dk.read(), expected.dk).largest,
                           error_of(memory.dv.read(), expected.dv).largest};
  for (const double error : errors)
    if (error > allowed) return join("largest error of a gradient ", error, ", allowed ", allowed);
  return "";
}

TEST(Property, EveryTypeMeetsItsPrecision) {
  property("every type meets its precision", 1000, [](Choices& choices) {
    Case c = draw_case(choices, test::test_limits());
    c.flavour = Flavour::normal;
    c.live_nan = false;
    c.scale.reset();
    c.dropout_p = 0;  // its factor would scale the error as well
    c.o_dtype = c.gradient_dtype = c.dtype;
    c.gradients = c.every_gradient();
    CaseMemory memory(c);
    call_both(memory);
    // start_backward() puts garbage into the rows of o beyond the lengths, which the oracle has as 0.
    memory.start_forward();
    forward(memory.device(), memory.attention(), memory.forward_outputs(true), {.num_threads = 1});
    const auto expected = reference::oracle_forward(memory.attention());
    double largest_score = 0;
    for (const double lse : expected.lse)
      if (std::isfinite(lse)) largest_score = std::max(largest_score, std::abs(lse));
    const std::string text = too_inexact(c.dtype, error_of(memory.o.read(), expected.o), largest_score);
    if (!text.empty() || c.dtype == DType::f16 || c.dtype == DType::bf16) return with_case(text, c);
    return with_case(gradients_too_inexact(c, memory), c);
  });
}

}  // namespace
}  // namespace cuflash::check
