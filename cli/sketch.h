// A problem of given sizes without memory for its tensors: enough to ask for its plan, which never reads a tensor.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cli/arguments/commands.h"
#include "cli/arguments/exit.h"
#include "dtype.h"
#include "support/text.h"

namespace cuflash::cli {

// Addresses for tensors that are never accessed: non-null, aligned and disjoint, as the library requires.
class Placeholders {
 public:
  template <class... Extent>
  void* next(DType type, Extent... extents) {
    constexpr uintptr_t kGap = 4096;
    const uintptr_t begin = end_;
    uintptr_t bytes = static_cast<uintptr_t>(std::max(size_of(type), size_of(DType::f32)));  // results may be f32
    bool overflows = ((extents < 0 || __builtin_mul_overflow(bytes, static_cast<uintptr_t>(extents), &bytes)) || ...);
    overflows = overflows || __builtin_add_overflow(begin, bytes / kGap * kGap + 2 * kGap, &end_);
    if (overflows) throw UsageError(join("a tensor of shape ", shape_text({extents...}), " cannot be addressed"));
    return reinterpret_cast<void*>(begin);
  }

 private:
  uintptr_t end_ = 4096;
};

// The problem that the options of `cuflash explain` describe. Fills outputs (forward) or tensors (backward).
struct Sketch {
  explicit Sketch(const ExplainOptions& options);

  Attention attention;
  ForwardOutputs outputs{};
  BackwardTensors tensors{};
};

}  // namespace cuflash::cli
