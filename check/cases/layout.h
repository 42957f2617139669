// Makes tensors in memory from the layout of a case.
#pragma once

#include <string>

#include "check/cases/case.h"
#include "check/memory/guarded.h"

namespace cuflash::check {

struct RowsShape {
  int64_t batch, heads, length, dim;  // packed: length is the number of rows of the whole buffer
};

// [B, H, S, D], or [T, H, D] if packed.
GuardedTensor place_rows(const std::string& name, DType dtype, bool packed, const RowsShape& shape,
                         const Layout& layout);
// [B, H, S], or [H, T] if packed. The last dimension is contiguous.
GuardedTensor place_lse(const std::string& name, DType dtype, bool packed, const RowsShape& shape,
                        const Layout& layout);
// [B or 1, Hq or 1, Sq or 1, Sk]: extent 1 also if the layout repeats; see repeated().
GuardedTensor place_scores(const std::string& name, DType dtype, const Case& c, const ScoreLayout& layout);
GuardedTensor place_vector(const std::string& name, DType dtype, const std::vector<int64_t>& shape);

// The view of a score tensor with the full extent and stride 0 where its layout repeats.
Tensor repeated(const GuardedTensor& scores, const Case& c, const ScoreLayout& layout);

}  // namespace cuflash::check
