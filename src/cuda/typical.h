// Typical problems, without memory: what a pack is made for, and what plans are shown and tested with.
#pragma once

#include <vector>

#include "cuda/plan.h"

namespace cuflash::cuda {

struct Typical {
  DType dtype = DType::bf16;
  int64_t dim_qk = 128, dim_v = 128;
  int options = 0;  // OptionBits
  bool sink = false, causal = false;
  int64_t batch = 4, heads_q = 16, heads_k = 16, len_q = 2048, len_k = 2048;
  bool aligned = true;  // rows start on 16-byte boundaries
};
// Addresses in them are not memory.
ForwardProblem forward_of(const Typical& typical);
BackwardProblem backward_of(const Typical& typical);  // with every gradient

// Nothing given: all.
struct TypicalChoice {
  std::vector<DType> dtypes;
  std::vector<int64_t> dims;
};
// The kernels that common problems get: every type, usual head sizes, plain and with each option, forward and backward.
// Without doubles.
std::vector<KernelKey> typical_kernels(const Arch& arch, const TypicalChoice& choice = {});

}  // namespace cuflash::cuda
