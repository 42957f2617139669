// Typical problems, without memory: a pack serves them, and tests and tools plan them.
#pragma once

#include <vector>

#include "cuda/plan/plan.h"

namespace cuflash::cuda {

struct Typical {
  DType dtype = DType::bf16;
  int64_t dim_qk = 128, dim_v = 128;
  int options = 0;  // OptionBits
  bool sink = false, causal = false;
  int64_t batch = 4, heads_q = 16, heads_k = 16, len_q = 2048, len_k = 2048;
  bool aligned = true;  // rows start on 16-byte boundaries
  bool packed = false;  // sequences of up to len_q and len_k, on average half as long, whose lengths are on the device
};
// The problems; their addresses do not point to memory.
ForwardProblem forward_of(const Typical& typical);
BackwardProblem backward_of(const Typical& typical);  // requests every gradient

struct TypicalCache {
  DType dtype = DType::bf16;
  int64_t dim_qk = 128, dim_v = 128;
  int options = 0;  // kSoftcap, kAlibi, kScaleFirst
  int64_t batch = 1, heads_q = 32, heads_k = 8, len_q = 1, room = 8192;
  int64_t page_size = 0;  // 0: contiguous
  int64_t len_new = 0, num_splits = 0, window_left = kUnbounded;
  bool v_in_k = false, aligned = true;
};
CacheProblem cache_of(const TypicalCache& typical);
MergeProblem merge_of(DType dtype, int64_t dim);

// Which typical problems to make. Empty lists select everything.
struct TypicalChoice {
  std::vector<DType> dtypes;
  std::vector<int64_t> dims;
};
// Every type and the usual head sizes, without options, with each option and with the usual pairs of options.
std::vector<Typical> typical_problems(const TypicalChoice& choice = {});
// Calls over a cache: every type and the usual head sizes, without options and with each of them, one query and many.
std::vector<TypicalCache> typical_caches(const TypicalChoice& choice = {});
// The kernels of all these problems, each once: a pack for every board of the architecture. A kernel whose splits may
// exchange sums is in the list in both variants (SplitReduction). Forward includes few queries over many keys, one
// short sequence and, without options, packed sequences: the number of SMs decides which calls split keys or list
// tiles, so a pack has kernels for both.
std::vector<KernelKey> typical_kernels(const Arch& arch, const TypicalChoice& choice = {});

}  // namespace cuflash::cuda
