// The search of `cuflash tune`: candidates of one problem after the other, within a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/terminal/interrupt.h"
#include "cli/tune/trial.h"

namespace cuflash::cli {

struct TuneOutcome {
  BenchPoint point;
  size_t tried = 0, rejected = 0, wrong = 0, left = 0;  // candidates
  tuned::Choice built_in, best;
  double built_in_ms = 0, best_ms = 0;  // medians; the best by its ratio to the built-in
  bool won = false;                     // the best is another one than the built-in
};

class TuneSearch {
 public:
  // seconds: for all problems.
  TuneSearch(const TuneTarget& target, double seconds, int32_t threads, const AskedToEnd& asked_to_end);

  bool out_of_time() const;

  using Report = std::function<void(size_t done, size_t all)>;  // before each kernel, each candidate

  // Kernels of all problems on every core, which the search of one problem after the other would keep busy in part. Not for
  // longer than a third of the time: what is left is compiled with its problem.
  void compile_ahead(const std::vector<BenchPoint>& points, const Report& report);

  // share: of the time that is left. Candidates whose results are wrong are named in notes; throws where those of the
  // built-in choice are, and Interrupted where a signal came.
  TuneOutcome search(const BenchPoint& point, std::vector<Candidate> candidates, double share, const Report& report,
                     std::vector<std::string>& notes);

 private:
  using Clock = std::chrono::steady_clock;
  using Timed = std::vector<std::pair<double, const Candidate*>>;  // milliseconds of a first look

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

// Times by those of the built-in choice: turn by turn where there are as many, since a machine that others use is slow for
// both, and otherwise by their median.
std::vector<double> ratios_to(const std::vector<double>& built_in, std::vector<double> times);

// Which of several lists of times is the best: the one with the least median of ratios to the first, which is the built-in
// choice's and wins unless another saves 2% and three quarters of its ratios are below 1: beyond the noise.
size_t fastest_of(const std::vector<std::vector<double>>& times);

}  // namespace cuflash::cli
