#include "check/run/run.h"

#include <exception>

#include "check/cases/setup.h"
#include "check/memory/device.h"
#include "check/run/compare.h"
#include "check/run/tiles.h"
#include "dtype.h"
#include "error.h"
#include "reference/naive.h"
#include "reference/noise.h"
#include "reference/oracle.h"

namespace cuflash::check {
namespace {

std::string forward_once(const Case& c, CaseMemory& memory, int threads, bool with_lse) {
  const Attention attention = memory.given_attention();
  const ForwardOutputs outputs = memory.forward_outputs(with_lse);
  memory.start_forward();
  const Setup setup(c, threads, attention, outputs);
  forward(c.device, attention, outputs, setup.execution());
  if (const std::string text = memory.damage() + setup.damage(); !text.empty()) return "forward: " + text;
  if (const std::string text = memory.o.unwritten(); !text.empty()) return "forward: " + text;
  if (const std::string text = memory.lse.unwritten(); with_lse && !text.empty()) return "forward: " + text;
  if (!c.tile_stats) return "";
  const std::string text = wrong_statistics(c, setup.stats(), Heads::apart, &memory);
  // A GPU may take the heads of a group as rows of one tile.
  const bool packed = c.device == Device::cuda && wrong_statistics(c, setup.stats(), Heads::packed, &memory).empty();
  return text.empty() || packed ? "" : "forward: " + text;
}

// The references that the results of a case are compared with.
struct References {
  struct Results {
    reference::Forward forward;
    reference::Backward backward;  // empty if the case has no gradients
  };
  Results expected, naive, noise;

  References(const Case& c, const CaseMemory& memory) {
    const Attention attention = memory.attention();
    if (!c.gradients.any()) {
      expected.forward = reference::oracle_forward(attention);
      naive.forward = reference::naive_forward(attention);
      noise.forward = reference::forward_noise(attention);
      return;
    }
    const ConstTensor dout = memory.dout.view(), dlse = memory.dlse.view();
    expected.backward = reference::oracle_backward(attention, dout, dlse, &expected.forward);
    naive.backward = reference::naive_backward(attention, dout, dlse, &naive.forward);
    noise.backward = reference::backward_noise(attention, dout, dlse, &noise.forward);
  }
};

std::string compare_outputs(const Case& c, const CaseMemory& memory, const References& references) {
  const reference::Forward &expected = references.expected.forward, &naive = references.naive.forward;
  const reference::Forward& noise = references.noise.forward;
  const std::string text = disagreement("o", Quantity::output, c.dtype, c.o_dtype, memory.o.read(), expected.o, naive.o,
                                        noise.o, has_correlated_errors(c));
  if (!text.empty()) return text;
  return disagreement("lse", Quantity::lse, c.dtype, state_type(c.dtype), memory.lse.read(), expected.lse, naive.lse,
                      noise.lse, has_correlated_errors(c));
}

// Runs forward without comparing its results.
std::string run_forward(const Case& c, CaseMemory& memory) {
  if (const std::string text = forward_once(c, memory, c.threads, c.lse_asked); !text.empty()) return text;
  if (c.other_threads > 0 || !c.lse_asked || c.device == Device::cuda) {
    const auto o = memory.o.bytes(), lse = memory.lse.bytes();
    const std::string text = forward_once(c, memory, c.other_threads > 0 ? c.other_threads : c.threads, true);
    if (!text.empty()) return "second " + text;
    if (o != memory.o.bytes()) return "forward: o of a second run has other bits";
    if (c.lse_asked && lse != memory.lse.bytes()) return "forward: lse of a second run has other bits";
  }
  return "";
}

std::string backward_once(const Case& c, CaseMemory& memory, int threads) {
  const Attention attention = memory.given_attention();
  const BackwardTensors tensors = memory.backward_tensors();
  memory.start_backward();
  const Setup setup(c, threads, attention, tensors);
  backward(c.device, attention, tensors, setup.execution());
  if (const std::string text = memory.damage() + setup.damage(); !text.empty()) return "backward: " + text;
  if (const std::string text = memory.unwritten_gradients(); !text.empty()) return "backward: " + text;
  // dsink alone visits no tile.
  const bool counted = c.tile_stats && (c.gradients.dq || c.gradients.dk || c.gradients.dv || c.gradients.dbias);
  if (const std::string text = wrong_statistics(c, setup.stats(), Heads::apart, &memory); counted && !text.empty())
    return "backward: " + text;
  return "";
}

std::string compare_gradients(const Case& c, const CaseMemory& memory, const References& references) {
  const reference::Backward &expected = references.expected.backward, &naive = references.naive.backward;
  const reference::Backward& noise = references.noise.backward;
  // Backward reads the stored O: an O of f32 limits f64 gradients to the precision of f32. The noise is proportional to the
  // roundoff.
  const bool lost = c.dtype == DType::f64 && c.o_dtype == DType::f32;
  const DType precision = lost ? DType::f32 : c.dtype;
  const auto compare = [&](const char* name, const GuardedTensor& actual,
                           std::vector<double> reference::Backward::*of) {
    if (!actual) return std::string();
    std::vector<double> allowed = noise.*of;
    for (double& x : allowed) x *= lost ? 0x1p29 : 1;
    return disagreement(name, Quantity::gradient, precision, c.gradient_dtype, actual.read(), expected.*of, naive.*of,
                        allowed, has_correlated_errors(c));
  };
  for (const std::string& text :
       {compare("dq", memory.dq, &reference::Backward::dq), compare("dk", memory.dk, &reference::Backward::dk),
        compare("dv", memory.dv, &reference::Backward::dv), compare("dbias", memory.dbias, &reference::Backward::dbias),
        compare("dsink", memory.dsink, &reference::Backward::dsink)})
    if (!text.empty()) return text;
  return "";
}

std::string run_backward(const Case& c, CaseMemory& memory) {
  if (const std::string text = backward_once(c, memory, c.threads); !text.empty()) return text;
  if (c.device == Device::cuda ? c.deterministic : c.other_threads > 0) {
    const auto bits = memory.results();
    if (const std::string text = backward_once(c, memory, c.other_threads); !text.empty()) return "second " + text;
    if (bits != memory.results()) return "backward: gradients of a second run have other bits";
  }
  return "";
}

}  // namespace

bool has_correlated_errors(const Case& c) {
  // Scores that are all beyond the cap have nearly one tanh, and 1 - tanh^2 has one rounding for all of them.
  const bool one_slope = c.flavour == Flavour::common_offset && c.softcap > 0;
  return c.flavour == Flavour::constant_rows || c.flavour == Flavour::tiny || one_slope;
}

void call_both(CaseMemory& memory) {
  const Device device = memory.device();
  const Execution execution{.num_threads = 1, .deterministic = true};
  memory.start_forward();
  forward(device, memory.given_attention(), memory.forward_outputs(true), execution);
  memory.start_backward();
  backward(device, memory.given_attention(), memory.backward_tensors(), execution);
}

std::string run_case(const Case& c) {
  try {
    CaseMemory memory(c);
    if (const std::string text = run_forward(c, memory); !text.empty()) return text;
    const References references(c, memory);
    if (const std::string text = compare_outputs(c, memory, references); !text.empty()) return text;
    if (!c.gradients.any()) return "";
    if (const std::string text = run_backward(c, memory); !text.empty()) return text;
    return compare_gradients(c, memory, references);
  } catch (const std::exception& error) {
    return join("a valid case was answered with: ", error.what());
  }
}

}  // namespace cuflash::check
