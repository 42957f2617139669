// What `cuflash tune` tries for a problem: configs near the one that the plan would take, and why others are not tried.
#pragma once

#include <string>
#include <vector>

#include "cli/bench/file.h"
#include "cuda/families/limits.h"
#include "cuda/families/plan.h"
#include "tuned/choice.h"

namespace cuflash::cli {

// Where a search is for: this machine's processor, or a GPU of an architecture with so many multiprocessors.
struct TuneTarget {
  bool cpu = true;
  cuda::Arch arch{};
  int num_sms = 0;
};

struct Candidate {
  tuned::Choice choice;
  cuda::Limits limits{};  // on the CPU: the scratch of a thread, as shared memory
  bool built_in = false;
  std::string rejected;  // "", or why it is not tried
};

// The built-in one first, the others by how many of their members differ from it. None where nothing can be chosen.
std::vector<Candidate> candidates_of(const BenchPoint& point, const TuneTarget& target);

// The kind of problem that a choice for this point is stored under.
tuned::Kind kind_of(const BenchPoint& point, const TuneTarget& target);

// The launch whose kernel a choice is about; a GPU's.
cuda::Launch launch_of(const BenchPoint& point, const TuneTarget& target, const tuned::Choice& choice);

}  // namespace cuflash::cli
