// Which rows of a cache the sequences of a call hold: lengths, left padding, indices and block tables.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"
#include "problem/snapshot.h"

namespace cuflash {

// Everything else of the problem is described. Values in host memory are copied and checked one by one, entries of a block
// table only where the call reads or writes their page.
void describe_cached_rows(CacheProblem& p, const cuflash_cache_tensors& c, Snapshot& copies);

}  // namespace cuflash
