// The values of the inputs. N(0, 1) alone hides faults: online softmax is easy as long as the scores are small.
#pragma once

#include "check/cases/case.h"
#include "check/cases/random.h"
#include "check/memory/guarded.h"

namespace cuflash::check {

void fill_normal(GuardedTensor& t, Random& random, double sigma = 1);

// Fills q, k and v by the flavour of the case; every value is finite in its type.
void fill_qkv(const Case& c, GuardedTensor& q, GuardedTensor& k, GuardedTensor& v, Random& random);

// Fills the mask by the pattern of the case. Every byte other than 0 is true.
void fill_mask(const Case& c, GuardedTensor& mask, Random& random);

// Fills the elements of t that `seen` does not mark with NaN, Inf or a huge number.
void fill_garbage(GuardedTensor& t, const std::vector<bool>& seen, Random& random);

// The row (b, h, row) of a tensor [B, H, S, D], or of a packed one [T, H, D], whose rows are numbered across the batch.
inline int64_t row_offset(const Tensor& t, int64_t b, int64_t h, int64_t row) {
  return t.rank == 4 ? b * t.stride[0] + h * t.stride[1] + row * t.stride[2] : row * t.stride[0] + h * t.stride[1];
}

}  // namespace cuflash::check
