// Merging two partial results: one kernel for every architecture.
#include "cuda/families/registry.h"
#include "cuda/plan/plan_common.h"

namespace cuflash::cuda {

constinit const KernelType merge_states{.name = "merge_states",
                                        .header = "kv/merge_states.h",
                                        .config = "MergeConfig",
                                        .params = "MergeParams",
                                        .bounds = "num_threads(C)",
                                        .config_ints = kInts<MergeConfig>};

MergePlan plan_merge(const MergeProblem& p, const Arch& arch) {
  if (p.dim > kLongestSequence)
    refuse(join("o_a: head size ", p.dim, " is above ", kLongestSequence, ", the largest of the CUDA kernel"));
  MergeConfig c{element_of(p.o_a.dtype), 32};
  while (c.lanes > 4 && c.lanes / 2 * 8 >= p.dim) c.lanes /= 2;
  const int64_t rows = (Checked(p.batch) * p.heads * p.len).value("o_a: its rows are");
  const int64_t rows_of_cta = num_threads(c) / c.lanes, ctas = rows / rows_of_cta + (rows % rows_of_cta != 0);
  return {launch_of(key_of(merge_states, arch, c), ctas, num_threads(c), 0)};
}

}  // namespace cuflash::cuda
