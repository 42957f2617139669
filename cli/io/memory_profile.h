// The memory of a call, in bytes.
#pragma once

#include "cli/arguments/commands.h"

namespace cuflash::cli {

struct MemoryProfile {
  double inputs = 0, outputs = 0;
  double workspace = 0;       // the library's, from its query
  double naive_matrices = 0;  // what naive attention needs instead

  // The saving, relative to all memory of naive attention.
  double saved() const {
    const double tensors = inputs + outputs;
    return 1 - (tensors + workspace) / (tensors + naive_matrices);
  }
};

// The memory of the call on the CPU, or on the architecture that the options name.
MemoryProfile memory_profile(const ExplainOptions& options);

}  // namespace cuflash::cli
