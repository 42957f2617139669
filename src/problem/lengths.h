// Batch and sequence lengths of a problem: dense, padded (seqlens) or packed (cu_seqlens).
#pragma once

#include <cuflash/cuflash.h>

#include "problem/problem.h"
#include "problem/snapshot.h"
#include "problem/tensor_rules.h"

namespace cuflash {

// Fills batch, len_q, len_k and the length arrays. Lengths in host memory are copied and checked one by one. Lengths in
// device memory are not read, so packed sequences there need max_seqlen_q and max_seqlen_k.
void describe_lengths(Problem& p, const cuflash_attention& a, Snapshot& copies);

// Replaces len_q and len_k of packed sequences in host memory with the longest actual lengths, so that a loose bound
// from the caller costs neither time nor memory. Tensors whose shape must match a bound have been described before.
void drop_loose_bounds(Problem& p);

// The values of an i32 tensor of this extent: a copy if they are in host memory, the original on a device.
const int32_t* lengths_of(const Argument& a, int64_t extent, const char* shape, const char* meaning, Memory memory,
                          Snapshot& copies);
// The number of rows in use of each of `batch` padded sequences of `length` rows; null if the argument is absent.
const int32_t* describe_used(const Argument& used, int64_t batch, int64_t length, Memory memory, Snapshot& copies);
// The largest length of packed sequences: given by the caller or, in host memory, computed and checked.
struct PackedLengths {
  const Argument& cu;
  const int32_t* values;  // values of cu, [batch + 1], from lengths_of
  int64_t total;          // rows of the tensor
  const char* of;         // name of the argument cu
};
int64_t describe_bound(const char* name, int64_t given, const PackedLengths& lengths, Memory memory);

}  // namespace cuflash
