// The search of `cuflash tune`, which takes the candidates of one problem after the other, within a time budget.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/terminal/interrupt.h"
#include "cli/tune/trial.h"

namespace cuflash::cli {

struct CandidateTime {
  tuned::Choice choice;
  double ms = 0;        // 0: not timed
  std::string verdict;  // "built in", "final", "first look", "left", or why it was not timed
};

struct TuneOutcome {
  BenchPoint point;
  size_t tried = 0, rejected = 0, wrong = 0, left = 0;  // candidates
  tuned::Choice built_in, best;
  double built_in_ms = 0, best_ms = 0;  // medians; the best has the smallest ratio to the built-in
  bool won = false;                     // the best is not the built-in choice
  std::vector<CandidateTime> times;     // one for each candidate
};

class TuneSearch {
 public:
  // `seconds` is the budget for all problems.
  TuneSearch(const TuneTarget& target, double seconds, int32_t threads, const AskedToEnd& asked_to_end);

  bool out_of_time() const;

  using Report = std::function<void(size_t done, size_t all)>;  // before each kernel, each candidate

  // Compiles the kernels of all problems on every core; compiling per problem would leave cores idle. Stops after a third of
  // the time; the remaining kernels are compiled with their problem.
  void compile_ahead(const std::vector<BenchPoint>& points, const Report& report);

  // Takes this share of the remaining time. Notes name the candidates whose results are wrong. Throws if the built-in
  // choice gives wrong results, and throws Interrupted after a signal.
  TuneOutcome search(const BenchPoint& point, std::vector<Candidate> candidates, double share, const Report& report,
                     std::vector<std::string>& notes);

 private:
  using Clock = std::chrono::steady_clock;
  using Timed = std::vector<std::pair<double, const Candidate*>>;  // milliseconds in the first look

  void try_one(const Candidate& candidate, TuneOutcome& outcome, Timed& timed, std::vector<std::string>& notes);
  void decide(TuneOutcome& outcome, Timed& timed, double seconds);

  TuneTarget target_;
  double seconds_;
  int32_t threads_;
  const AskedToEnd& asked_to_end_;
  std::unique_ptr<CudaTimer> timer_;  // null on the CPU
  std::unique_ptr<Trial> trial_;
  Compiled compiled_;
  Clock::time_point start_ = Clock::now();
};

// Times relative to the built-in choice: pairwise if there are as many, since a busy machine slows down both, and otherwise
// relative to its median.
std::vector<double> ratios_to(const std::vector<double>& built_in, std::vector<double> times);

// The index of the best list of times: the one with the smallest median ratio to the first list, which belongs to the
// built-in choice. Another list wins only if it saves 2% and three quarters of its ratios are below 1, which is beyond noise.
size_t fastest_of(const std::vector<std::vector<double>>& times);

}  // namespace cuflash::cli
