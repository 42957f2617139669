// The summary of a mask tensor on the host: its shape, its size, and where its parts are (kernels/attn/mask_summary.h).
#pragma once

#include "attn/mask_summary.h"
#include "checked.h"
#include "problem/problem.h"

namespace cuflash {

// Distinct extents of a mask: 1 where it repeats.
struct MaskShape {
  int64_t batch = 0, heads = 0, rows = 0, keys = 0;

  bool operator==(const MaskShape&) const = default;
};

// The shape of the summary of the problem's mask tensor.
MaskShape mask_shape_of(const Problem& problem);

// Bytes of a summary.
Checked mask_summary_bytes(const MaskShape& shape);

// The parts of a summary that is, or will be, at `data`.
MaskSummary mask_summary_at(const MaskShape& shape, void* data);

}  // namespace cuflash
