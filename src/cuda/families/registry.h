// All families, in the order in which a plan tries them. To add an architecture, write its families, declare them here
// and put them in front of the portable ones in registry.cpp.
#pragma once

#include <string_view>

#include "cuda/families/family.h"

namespace cuflash::cuda {

extern const ForwardFamily sm90_forward_by_kv, sm90_forward, portable_forward;
extern const BackwardFamily sm90_backward, portable_backward;
// The launch of the portable dBias kernel, for a main kernel with tiles of tile_q queries.
Launch bias_launch(const BackwardProblem& problem, const Arch& arch, int tile_q);
extern const KvFamily sm90_kv_by_forward, sm90_kv, portable_kv;
extern const KernelType merge_states, summarize_mask;

// The families that come before the one that accepts the problem, with their reasons.
struct Rejection {
  const char* family;
  const char* reason;
};
template <class Problem>
std::vector<Rejection> rejections(const Problem& problem, const Arch& arch,
                                  KernelPreference kernels = kernel_preference());

// The type of a kernel by the name of its function. Throws, with a sentence, for a name that no kernel has.
const KernelType& kernel_type(std::string_view name);
// The inverse of name_of. Throws, with the rule that the name breaks.
KernelKey kernel_named(std::string_view name);

}  // namespace cuflash::cuda
