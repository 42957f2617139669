// All families, in the order in which a plan tries them. To add an architecture, write its families, declare them here
// and put them in front of the portable ones in registry.cpp.
#pragma once

#include <string_view>

#include "cuda/families/family.h"

namespace cuflash::cuda {

extern const ForwardFamily sm90_forward, portable_forward;
extern const BackwardFamily sm90_backward, portable_backward;
// The launch of the portable dBias kernel, for a main kernel with tiles of tile_q queries.
Launch bias_launch(const BackwardProblem& problem, const Arch& arch, int tile_q);
extern const KvFamily sm90_kv, portable_kv;
extern const KernelType merge_states, summarize_mask;

// Families that serve the architecture and come before the one that accepts the problem, with their reasons.
struct Rejection {
  const char* family;
  const char* reason;
};
std::vector<Rejection> rejections(const ForwardProblem& problem, const Arch& arch,
                                  KernelPreference kernels = kernel_preference());
std::vector<Rejection> rejections(const BackwardProblem& problem, const Arch& arch,
                                  KernelPreference kernels = kernel_preference());
std::vector<Rejection> rejections(const CacheProblem& problem, const Arch& arch,
                                  KernelPreference kernels = kernel_preference());

// The type of a kernel by the name of its function. Throws, with a sentence, for a name that no kernel has.
const KernelType& kernel_type(std::string_view name);
// The inverse of name_of. Throws, with the rule that the name breaks.
KernelKey kernel_named(std::string_view name);

}  // namespace cuflash::cuda
