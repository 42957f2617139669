// Which rows of a cache the sequences of a call hold: lengths, left padding, batch indices and block tables.
#pragma once

#include <cuflash/cuflash_cache.h>

#include "problem/problem.h"
#include "problem/snapshot.h"

namespace cuflash {

// Requires that the rest of the problem has been described. Copies values in host memory and checks each of them; of a
// block table, only the entries whose page the call reads or writes.
void describe_cached_rows(CacheProblem& p, const cuflash_cache_tensors& c, Snapshot& copies);

}  // namespace cuflash
