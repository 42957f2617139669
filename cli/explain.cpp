// Prints which kernel a problem of these sizes would get.
#include <iostream>

#include "backend/backend.h"
#include "check/memory/device.h"
#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "cli/sketch.h"
#include "problem/describe.h"

namespace cuflash::cli {

namespace {

// The tensors of this command do not exist, so the flags decide which device they would be on.
template <class Tensors>
std::string explain_anywhere(const Attention& attention, const Tensors& tensors, const ExplainOptions& options) {
  const Execution& execution = options.execution;
  if (execution.device == Device::cpu && !options.arch.empty())
    throw UsageError("--arch names an architecture of CUDA devices; leave it out with --device cpu");
  const bool on_cuda = execution.device == Device::cuda || !options.arch.empty();
  if (!on_cuda) return cuflash::explain(attention, tensors, execution);
  Snapshot copies;
  const auto problem = describe(detail::to_c(attention), detail::to_c(tensors), Memory{0}, copies);
  if (!options.arch.empty()) return cuflash::explain(problem, execution, cuda::arch_named(options.arch));
  if (const std::string why = check::why_no_cuda(); !why.empty()) return explain_none(problem, why.c_str());
  return cuflash::explain(problem, execution);
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  const Sketch sketch(options);
  std::cout << (options.backward ? explain_anywhere(sketch.attention, sketch.tensors, options)
                                 : explain_anywhere(sketch.attention, sketch.outputs, options))
            << "\n";
  return kExitOk;
}

}  // namespace cuflash::cli
