#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>

#include "check/run/compare.h"
#include "cli/demo/demo.h"
#include "dtype.h"
#include "reference/naive.h"
#include "reference/oracle.h"

namespace cuflash::cli {

namespace {

using check::Quantity;

struct Result {
  const char* name;
  Quantity quantity;
  std::vector<double> actual;
  const std::vector<double>&expected, &naive;
};

double max_error(const std::vector<double>& actual, const std::vector<double>& expected) {
  double error = 0;
  for (size_t n = 0; n < actual.size(); ++n) error = std::max(error, std::abs(actual[n] - expected[n]));
  return error;
}

// Prints one line; false if the result disagrees with the oracle.
bool show(const Result& r, DType type) {
  const DType stored = r.quantity == Quantity::lse ? state_type(type) : type;
  const std::string fault = check::disagreement(r.name, r.quantity, type, stored, r.actual, r.expected, r.naive);
  std::cout << "  " << std::left << std::setw(6) << cuflash::name_of(type) << std::setw(5) << r.name << std::right
            << std::scientific << std::setprecision(1) << std::setw(9) << max_error(r.actual, r.expected)
            << std::setw(9) << max_error(r.naive, r.expected) << "   " << (fault.empty() ? "ok" : fault) << "\n";
  return fault.empty();
}

}  // namespace

bool show_accuracy(const DemoShape& shape, DType type, const Execution& execution) {
  const DemoProblem problem(shape, type);
  const Attention& attention = problem.attention();
  const BackwardTensors gradients = problem.gradients();
  flash_attention_forward(attention, problem.outputs(), execution);
  flash_attention_backward(attention, gradients, execution);

  const reference::Forward forward = reference::oracle_forward(attention);
  const reference::Backward backward = reference::oracle_backward(attention, gradients.dout, {});
  const reference::Forward naive = reference::naive_forward(attention);
  const reference::Backward naive_backward = reference::naive_backward(attention, gradients.dout, {});
  bool agrees = true;
  for (const Result& result : {Result{"o", Quantity::output, problem.o(), forward.o, naive.o},
                               {"lse", Quantity::lse, problem.lse(), forward.lse, naive.lse},
                               {"dq", Quantity::gradient, problem.dq(), backward.dq, naive_backward.dq},
                               {"dk", Quantity::gradient, problem.dk(), backward.dk, naive_backward.dk},
                               {"dv", Quantity::gradient, problem.dv(), backward.dv, naive_backward.dv}}) {
    agrees = show(result, type) && agrees;
  }
  return agrees;
}

}  // namespace cuflash::cli
