// The summary of a mask tensor on the host: its shape, its size, and where its parts are (kernels/mask_summary.h).
#pragma once

#include <cuflash/cuflash.h>

#include <ostream>

#include "checked.h"
#include "mask_summary.h"
#include "problem/problem.h"
#include "problem/tensor_rules.h"

namespace cuflash {

// Distinct extents of a mask: 1 where it repeats.
struct MaskShape {
  int64_t batch = 0, heads = 0, rows = 0, keys = 0;

  bool operator==(const MaskShape&) const = default;
};

std::ostream& operator<<(std::ostream& out, const MaskShape& shape);  // "[1, 1, 4096, 4096]"

// The shape of the summary of the problem's mask tensor.
MaskShape mask_shape_of(const Problem& problem);

// Bytes of a summary.
Checked mask_summary_bytes(const MaskShape& shape);

// The parts of a summary that is, or will be, at `data`.
MaskSummary mask_summary_at(const MaskShape& shape, void* data);

// A mask whose summary is to be made.
struct MaskProblem {
  Memory memory;
  ConstRows mask;
  MaskShape shape;
  MaskSummary summary{};
};
// Validates the arguments of cuflash_summarize_mask, and of its size query without a summary.
MaskProblem describe_mask(const cuflash_tensor& mask);
MaskProblem describe_mask(const cuflash_tensor& mask, const cuflash_mutable_tensor& summary, Memory memory);

// The rules for the memory of a summary: words, aligned to 64 bytes, and as many as the summary has.
void require_summary_memory(const Argument& summary);
void require_summary_size(const Argument& summary, const MaskShape& shape);

}  // namespace cuflash
