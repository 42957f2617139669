// Many random cases in a row: the engine of `cuflash check` and of the sweep test.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check/cases/cache_case.h"
#include "check/cases/case.h"
#include "check/cases/cuda_limits.h"
#include "check/run/coverage.h"

namespace cuflash::check {

struct SweepFailure {
  uint64_t index = 0;
  std::string failure;       // what went wrong, in one line
  std::string reproduction;  // "cuflash check --seed S --only K", the kind of calls and the device
  std::string description;   // the case, in one line
};

struct SweepResult {
  uint64_t cases = 0, failed = 0;
  std::vector<SweepFailure> failures;  // the first few, by index
  Coverage coverage;
  double seconds = 0;  // summed over all threads
};

// Called after every case, never by two threads at once. Returning false starts no more cases. Running cases finish, so that
// a result always covers the first cases without a gap.
using Progress = std::function<bool(uint64_t done, uint64_t failed)>;
// Called for every failure, also beyond the first few, as soon as it is found and never by two threads at once.
using FailureLog = std::function<void(const SweepFailure&)>;

// Case `index` of the sweep that starts at `seed`.
Case sweep_case(uint64_t seed, uint64_t index, const Limits& limits = {});
CacheCase sweep_cache_case(uint64_t seed, uint64_t index, const Limits& limits = {});
// The case is of the kind that the limits select.
std::string describe_sweep_case(uint64_t seed, uint64_t index, const Limits& limits);

// The flags of `cuflash check` besides seed and number: the kind of calls and the device.
std::string sweep_flags(const Limits& limits);

// Runs the cases first .. first + count - 1. workers == 0: one per core.
SweepResult sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress = {}, unsigned workers = 0,
                  const Limits& limits = {}, const FailureLog& log = {});

}  // namespace cuflash::check
