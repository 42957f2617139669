// The configs that `cuflash tune` tries for a problem, near that of the plan, and why it does not try others.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/file.h"
#include "cuda/plan/limits.h"
#include "cuda/plan/plan.h"
#include "tuned/choice.h"

namespace cuflash::cli {

// The target of a search: this machine's processor, or a GPU of an architecture with this many SMs.
struct TuneTarget {
  bool cpu = true;
  cuda::Arch arch{};
  int num_sms = 0;
};

struct Candidate {
  tuned::Choice choice;
  cuda::Limits limits{};  // on the CPU, shared memory is the scratch of one thread
  bool built_in = false;
  std::string rejected;  // "", or why it is not tried
};

// The built-in config first, then the others by how many members differ from it. Empty if there is no choice.
std::vector<Candidate> candidates_of(const BenchPoint& point, const TuneTarget& target);

// The kind of problem under which a choice for this point is stored.
tuned::Kind kind_of(const BenchPoint& point, const TuneTarget& target);

// The GPU launch whose kernel a choice configures.
cuda::Launch launch_of(const BenchPoint& point, const TuneTarget& target, const tuned::Choice& choice);

}  // namespace cuflash::cli
