// The C ABI of mask summaries.
#include <cuflash/cuflash.h>

#include "api/calls.h"

using namespace cuflash;

cuflash_status cuflash_mask_summary_size(const cuflash_tensor* mask, size_t* bytes) {
  return guarded([&] {
    if (!mask) reject("mask: is NULL");
    if (!bytes) reject("bytes: is NULL");
    *bytes = workspace_bytes(mask_summary_bytes(describe_mask(*mask).shape));
  });
}

cuflash_status cuflash_summarize_mask(const cuflash_tensor* mask, const cuflash_mutable_tensor* summary,
                                      const cuflash_execution* execution, int64_t shape[4]) {
  return guarded([&] {
    if (!mask) reject("mask: is NULL");
    if (!summary) reject("summary: is NULL");
    if (!shape) reject("shape: is NULL");
    const Execution how = read(execution);
    const MaskProblem problem = describe_mask(*mask, *summary, locate(*mask, *summary, how));
    backend_for(problem)(problem, how);
    const MaskShape& made = problem.shape;
    shape[0] = made.batch, shape[1] = made.heads, shape[2] = made.rows, shape[3] = made.keys;
  });
}
