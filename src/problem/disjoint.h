// Outputs and the workspace must not share memory with any other tensor. A call is rejected only if two tensors
// certainly share an element; see overlap.h.
#pragma once

#include <cuflash/cuflash_cache.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "problem/for_each_tensor.h"
#include "problem/overlap.h"
#include "problem/problem.h"

namespace cuflash {

// Requires that every tensor has been described.
void require_disjoint(const cuflash_attention& attention, const cuflash_forward_outputs& outputs);
void require_disjoint(const cuflash_attention& attention, const cuflash_backward_tensors& tensors);
void require_disjoint(const CacheProblem& p, const cuflash_attention& attention, const cuflash_cache_tensors& cache);
void require_disjoint(const cuflash_merge_tensors& tensors);  // an output may be an input if both are the same view
void require_disjoint(const Argument& output, const Argument& other);

void require_disjoint_from_workspace(const Argument& tensor, const Execution& execution, size_t used);

// The caller may give more bytes than the call uses. The size in use, needed(), is computed only if a tensor overlaps
// the given bytes.
template <class Needed, class... Structs>
void require_own_workspace(const Execution& execution, Needed needed, const Structs&... structs) {
  if (!execution.workspace) return;
  const auto begin = reinterpret_cast<uintptr_t>(execution.workspace);
  const Extent given{begin, begin + std::min(execution.workspace_size, ~uintptr_t{0} - begin)};
  const auto visit = [&](const char* name, const auto& tensor) {
    if (const Argument a(name, tensor); extent_of(a).meets(given))
      require_disjoint_from_workspace(a, execution, needed());
  };
  (for_each_tensor(structs, visit), ...);
}

}  // namespace cuflash
