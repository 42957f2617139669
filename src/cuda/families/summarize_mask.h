// The kernel that makes the summary of a mask tensor, for every architecture and every family that reads summaries.
#pragma once

#include "checked.h"
#include "cuda/families/registry.h"
#include "mask_params.h"
#include "problem/mask_shape.h"

namespace cuflash::cuda {

// Query i needs the keys [i + low, i + high): all of them, unless the call makes the summary only for itself and has a
// window.
struct NeededKeys {
  int64_t low = -kUnbounded, high = kUnbounded;
};
NeededKeys needed_keys(const Problem& problem);
MaskSummaryParams mask_summary_params(const ConstRows& mask, const MaskShape& shape, const MaskSummary& summary,
                                      const NeededKeys& needed = {});

// Throws if the summary needs more CTAs than a grid has.
void require_summary_fits_grid(const MaskShape& shape);

// Bytes of the summary that a call makes in its workspace; 0 if it has no mask tensor, or passes a summary of it, or
// its family reads the tensor itself. A size query must refuse what the launch would refuse.
template <class Problem, class Plan>
size_t own_summary_bytes(const Problem& p, const Plan& plan) {
  if (!plan.family->reads_mask_summary || !p.mask || p.summary.blocks) return 0;
  const MaskShape shape = mask_shape_of(p);
  require_summary_fits_grid(shape);
  return workspace_bytes(mask_summary_bytes(shape));
}
// The workspace of a call that needs `bytes` for everything else: the summary comes last.
template <class Problem, class Plan>
size_t bytes_with_summary(const Problem& p, const Plan& plan, size_t bytes) {
  const size_t summary = own_summary_bytes(p, plan);
  if (summary == 0) return bytes;
  return workspace_bytes(round_up(Checked(static_cast<int64_t>(bytes)), 64) + static_cast<int64_t>(summary));
}

}  // namespace cuflash::cuda
