// One problem of `cuflash tune` and its candidates: compiled, held to the oracle, timed.
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

// Kernels of a GPU that were compiled in this run, by name.
struct CompileResult {
  std::string error;   // "", or why there is no kernel
  std::string remark;  // "", or why it will be slow: registers that spill, products that wait for each other
};
using Compiled = std::map<std::string, CompileResult>;

// Compiles what was not compiled before on every core and leaves it in the disk cache. Needs no GPU.
using GoOn = std::function<bool(size_t begun, size_t all)>;  // asked by one thread, before each of its kernels
void compile(const std::vector<cuda::Program>& programs, Compiled& compiled, const GoOn& go_on);
// The kernel of a candidate.
cuda::Program program_of(const Candidate& candidate, const BenchPoint& point, const TuneTarget& target);
// Compiles the kernels of candidates. Those that cannot be compiled or will be slow are rejected; the built-in one may be
// slow.
void compile(const std::vector<Candidate*>& candidates, const BenchPoint& point, const TuneTarget& target,
             Compiled& compiled);

class Trial {
 public:
  // timer: null on the CPU.
  Trial(const BenchPoint& point, CudaTimer* timer, int32_t threads);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // "", or what is wrong with the results of a candidate: against the oracle, for a part of the problem that the oracle
  // can compute, or against those of the built-in choice, for the whole.
  std::string fault(const Candidate& candidate);

  // Milliseconds of the best of a few calls: a first look.
  double first_time(const Candidate& candidate);
  // Milliseconds of calls of each, in turns, for so many seconds.
  std::vector<std::vector<double>> times(const std::vector<const Candidate*>& candidates, double seconds);

 private:
  class Watchdog;

  void run(const Candidate& candidate);
  std::vector<float> results(const Candidate& candidate);

  BenchPoint point_;
  CudaTimer* timer_;
  BenchProblem problem_;
  std::vector<float> expected_;  // a part of the results of the built-in choice
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace cuflash::cli
