// The configs near that of a plan.
#pragma once

#include <vector>

#include "cli/tune/candidates.h"
#include "cuda/families/tuned_config.h"

namespace cuflash::cli {

// "" where a config can be tried.
std::string reason_of(const cuda::Limits& limits);

// Collects configs, skipping shapes that no kernel has. For each tile it takes the first number of CTAs, or of stages, that
// fits, since the tile matters most.
class Collection {
 public:
  explicit Collection(const cuda::Arch& arch) : arch_(arch) {}

  template <class Config>
  void add_built_in(const Config& config) {
    all_.push_back({cuda::choice_of(config), limits_of(config, arch_), true, ""});
  }

  template <class Config>
  void add_first(const std::vector<Config>& configs) {
    Candidate refused;
    for (const Config& config : configs) {
      Candidate candidate{cuda::choice_of(config), limits_of(config, arch_), false, ""};
      if (candidate.limits.fault == cuda::Fault::shape) continue;
      candidate.rejected = reason_of(candidate.limits);
      if (candidate.rejected.empty()) return add(std::move(candidate));
      refused = std::move(candidate);  // the smallest of them
    }
    if (refused.choice.family != tuned::Family::built_in) add(std::move(refused));
  }

  void add(Candidate candidate);  // once

  const cuda::Arch& arch() const { return arch_; }

  // The built-in config, which was added first, then the others by how many members differ from it.
  std::vector<Candidate> sorted();

 private:
  cuda::Arch arch_;
  std::vector<Candidate> all_;
};

void add_neighbours(Collection& all, const ForwardConfig& built_in);
void add_neighbours(Collection& all, const Sm90ForwardConfig& built_in);
void add_neighbours(Collection& all, const BackwardConfig& built_in);
void add_neighbours(Collection& all, const Sm90BackwardConfig& built_in);
// rows: queries times heads of a group. splits: those of the plan.
void add_neighbours(Collection& all, const KvConfig& built_in, int64_t rows, int64_t splits);

}  // namespace cuflash::cli
