// Batch and sequence lengths of a problem: dense, padded (seqlens) or packed (cu_seqlens).
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"
#include "problem/snapshot.h"
#include "problem/tensor_rules.h"

namespace cuflash {

// Fills batch, len_q, len_k and the length arrays. Lengths in host memory are copied and checked one by one; those in
// device memory are not read, so packed ones come with max_seqlen_q and max_seqlen_k.
void describe_lengths(Problem& p, const cuflash_attention& a, Snapshot& copies);

// len_q and len_k of packed sequences in host memory become the longest lengths, however far above the caller's bounds
// are: nothing that is computed or allocated depends on those. Shapes that must match a bound have been described before.
void drop_loose_bounds(Problem& p);

// The values of an i32 tensor of this extent: a copy of them in host memory, themselves on a device.
const int32_t* lengths_of(const Argument& a, int64_t extent, const char* shape, const char* meaning, Memory memory,
                          Snapshot& copies);
// The first used rows of each of `batch` sequences of `length` rows; null where the argument is absent.
const int32_t* describe_used(const Argument& used, int64_t batch, int64_t length, Memory memory, Snapshot& copies);
// The largest length of packed sequences: `given` by the caller or, in host memory, found and checked.
struct PackedLengths {
  const Argument& cu;
  const int32_t* values;  // of cu, [batch + 1], by lengths_of
  int64_t total;          // rows of the tensor
  const char* of;         // its name
};
int64_t describe_bound(const char* name, int64_t given, const PackedLengths& lengths, Memory memory);

}  // namespace cuflash
