// The KV cache on CUDA: not there yet, and said so.
#include "cuda/backend.h"
#include "cuda/explain.h"
#include "error.h"

namespace cuflash::cuda {

static constexpr const char* kMissing = "attention over a KV cache has no CUDA kernel in this version";

[[noreturn]] static void refuse(const char* what) {
  throw FlashAttentionError(CUFLASH_UNSUPPORTED, join(what, "; use host memory, or cuflash_forward with seqlens_k"));
}

void attend_cache(const CacheProblem&, const Execution&) { refuse(kMissing); }
size_t cache_workspace_size(const CacheProblem&, const Execution&) { refuse(kMissing); }
void merge(const MergeProblem&, const Execution&) { refuse("merge_states has no CUDA kernel in this version"); }

std::string explain(const CacheProblem&, const Execution&) { return join("backend    none\nnot cuda   ", kMissing); }
std::string explain(const CacheProblem& p, const Execution& e, const Arch&) { return explain(p, e); }

}  // namespace cuflash::cuda
