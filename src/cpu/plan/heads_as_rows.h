// Few queries of heads that share keys: the heads of a group as rows of one head, so that panels are full and each key is
// packed once for the group.
#pragma once

#include "problem/problem.h"

namespace cuflash::cpu {

// Whether the heads of a group fill panels that one head would not fill, and enough keys follow, outside of a cache. Does
// not depend on the strides of a tensor.
bool group_fills_panels(const Problem& problem);

// Whether panels hold rows of several heads. The bits of a row are the same as if they did not.
bool has_heads_as_rows(const ForwardProblem& problem);

// Whether rows of a group follow each other at equal distances. If not, heads_as_rows needs contiguous copies.
bool is_uniform(const ForwardProblem& problem);

// The same problem with one query head for each key head.
ForwardProblem heads_as_rows(const ForwardProblem& problem);

}  // namespace cuflash::cpu
