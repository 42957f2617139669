// One problem of `cuflash tune` and its candidates: compiles, checks against the oracle, and times them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/cuda.h"
#include "cli/bench/problem.h"
#include "cli/tune/candidates.h"
#include "cuda/jit/program.h"

namespace cuflash::cli {

// The GPU kernels compiled in this run, by name.
struct CompileResult {
  std::string error;   // "", or why there is no kernel
  std::string remark;  // "", or why it will be slow: spilled registers, serialized wgmma
};
using Compiled = std::map<std::string, CompileResult>;

// Compiles the missing kernels on every core and leaves them in the disk cache. Needs no GPU.
using GoOn = std::function<bool(size_t begun, size_t all)>;  // one thread calls it before each of its kernels
void compile(const std::vector<cuda::Program>& programs, Compiled& compiled, const GoOn& go_on);
// The kernel of a candidate.
cuda::Program program_of(const Candidate& candidate, const BenchPoint& point, const TuneTarget& target);
// Compiles the kernels of candidates, and rejects those that do not compile or will be slow. The built-in one may be slow.
void compile(const std::vector<Candidate*>& candidates, const BenchPoint& point, const TuneTarget& target,
             Compiled& compiled);

class Trial {
 public:
  // timer: null on the CPU.
  Trial(const BenchPoint& point, CudaTimer* timer, int32_t threads);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // What is wrong with a candidate's results, or "". A part of the problem is compared with the oracle, which could not
  // compute all of it, and the whole with the results of the built-in choice.
  std::string fault(const Candidate& candidate);

  // The best of a few calls, in milliseconds: a first look.
  double first_time(const Candidate& candidate);
  // Milliseconds of each candidate's calls, in alternation, for so many seconds.
  std::vector<std::vector<double>> times(const std::vector<const Candidate*>& candidates, double seconds);

 private:
  class Watchdog;

  void run(const Candidate& candidate);
  std::vector<float> results(const Candidate& candidate);

  BenchPoint point_;
  CudaTimer* timer_;
  BenchProblem problem_;
  std::vector<float> expected_;  // sampled results of the built-in choice
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace cuflash::cli
