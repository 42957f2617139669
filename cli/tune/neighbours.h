// The configs near that of a plan.
#pragma once

#include <vector>

#include "cli/tune/candidates.h"
#include "cuda/families/family.h"

namespace cuflash::cli {

// Why a config cannot be tried; "" if it can.
std::string reason_of(const cuda::Limits& limits);

// Collects configs. Configs whose shape no kernel supports are skipped. Of alternatives, which differ in the number of
// CTAs or of stages, the first that fits is used: the tile decides.
class Collection {
 public:
  explicit Collection(const cuda::Arch& arch) : arch_(arch) {}

  template <class Family>
  void add_built_in(const Family& family, const cuda::KernelKey& kernel) {
    all_.push_back({family.choice(kernel), family.limits(kernel, arch_), true, ""});
  }

  template <class Family>
  void add_first(const Family& family, const cuda::Alternatives& kernels) {
    Candidate refused;
    for (const cuda::KernelKey& kernel : kernels) {
      Candidate candidate{family.choice(kernel), family.limits(kernel, arch_), false, ""};
      if (candidate.limits.fault == cuda::Fault::shape) continue;
      candidate.rejected = reason_of(candidate.limits);
      if (candidate.rejected.empty()) return add(std::move(candidate));
      refused = std::move(candidate);  // the last alternative, which is the smallest
    }
    if (!refused.choice.family.empty()) add(std::move(refused));
  }

  void add(Candidate candidate);  // ignores repeated candidates

  // The built-in candidate, which was added first, then the others by how many members differ from it.
  std::vector<Candidate> sorted();

 private:
  cuda::Arch arch_;
  std::vector<Candidate> all_;
};

// Adds the configs that the plan's family proposes as alternatives to the plan's own.
template <class Problem, class Plan>
void add_neighbours(Collection& all, const Problem& problem, const Plan& plan, const cuda::Arch& arch) {
  for (const cuda::Alternatives& kernels : plan.family->candidates(problem, plan, arch))
    all.add_first(*plan.family, kernels);
}
// Adds other numbers of splits, which matter more than the tile.
void add_splits(Collection& all, const cuda::KvPlan& plan);

}  // namespace cuflash::cli
