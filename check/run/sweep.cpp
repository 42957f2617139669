#include "check/run/sweep.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "check/run/cache_run.h"
#include "check/run/run.h"
#include "dtype.h"
#include "error.h"
#include "support/environment.h"

namespace cuflash::check {

constexpr size_t kFailuresShown = 10;

// The limits of one case: with its set, if there are sets.
static Limits limits_of(const Limits& limits, uint64_t index) {
  Limits of_case = limits;
  if (!limits.kernel_sets.empty()) of_case.kernel_set = limits.kernel_sets[index % limits.kernel_sets.size()];
  return of_case;
}

Case sweep_case(uint64_t seed, uint64_t index, const Limits& of_sweep) {
  constexpr uint32_t kPlainOnCuda = 4, kOptionsOnCuda = 3;  // one in this many
  const Limits limits = limits_of(of_sweep, index);
  Choices choices = Choices::of_seed(seed, index);
  if (limits.options) return draw_plain_case_with_options(choices, limits);
  if (limits.plain) return draw_plain_case(choices, limits);
  const bool fast = limits.device == Device::cuda && (!limits.kernel_set || size_of(limits.kernel_set->dtype) == 2);
  if (fast && choices.chance(kPlainOnCuda)) return draw_plain_case(choices, limits);
  if (fast && choices.chance(kOptionsOnCuda)) return draw_plain_case_with_options(choices, limits);
  return draw_case(choices, limits);
}

CacheCase sweep_cache_case(uint64_t seed, uint64_t index, const Limits& limits) {
  Choices choices = Choices::of_seed(seed, index);
  return draw_cache_case(choices, limits_of(limits, index));
}

std::string describe_sweep_case(uint64_t seed, uint64_t index, const Limits& limits) {
  return limits.cache ? describe(sweep_cache_case(seed, index, limits)) : describe(sweep_case(seed, index, limits));
}

// Portable kernels are chosen by the environment.
static const char* sweep_command(const Limits& limits) {
  const bool portable = limits.device == Device::cuda && environment().kernels == "portable";
  return portable ? "CUFLASH_CUDA_KERNELS=portable cuflash check" : "cuflash check";
}

std::string sweep_flags(const Limits& limits) {
  const char* kind = limits.cache ? " --cache" : limits.plain ? " --plain" : limits.options ? " --options" : "";
  if (limits.device != Device::cuda) return kind;
  if (!limits.kernel_sets.empty()) return join(kind, " --device cuda --kernel-sets ", limits.kernel_sets.size());
  return join(kind, " --device cuda --head-sizes ", limits.head_sizes.size());
}

namespace {

class Sweep {
 public:
  Sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress, const Limits& limits,
        const FailureLog& log)
      : seed_(seed), first_(first), count_(count), progress_(progress), limits_(limits), log_(log) {}

  void work() {
    while (!stopped_) {
      const uint64_t begun = begun_++;
      if (begun >= count_) return;
      const uint64_t index = first_ + begun;
      if (limits_.cache) check(index, sweep_cache_case(seed_, index, limits_), run_cache_case);
      else check(index, sweep_case(seed_, index, limits_), run_case);
    }
  }

  SweepResult result() {
    std::sort(result_.failures.begin(), result_.failures.end(),
              [](const SweepFailure& a, const SweepFailure& b) { return a.index < b.index; });
    return result_;
  }

 private:
  template <class AnyCase>
  void check(uint64_t index, const AnyCase& c, std::string (*run)(const AnyCase&)) {
    const auto start = std::chrono::steady_clock::now();
    const std::string failure = run(c);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::lock_guard lock(mutex_);
    result_.coverage.add(c), result_.seconds += seconds.count();
    record(index, failure);
  }

  void record(uint64_t index, const std::string& failure) {
    ++result_.cases;
    if (!failure.empty()) {
      ++result_.failed;
      if (result_.failures.size() < kFailuresShown || log_) {
        const SweepFailure found{
            index, failure, join(sweep_command(limits_), " --seed ", seed_, " --only ", index, sweep_flags(limits_)),
            describe_sweep_case(seed_, index, limits_)};
        if (log_) log_(found);
        if (result_.failures.size() < kFailuresShown) result_.failures.push_back(found);
      }
    }
    if (progress_ && !progress_(result_.cases, result_.failed)) stopped_ = true;
  }

  const uint64_t seed_, first_, count_;
  const Progress& progress_;
  const Limits& limits_;
  const FailureLog& log_;
  std::atomic<uint64_t> begun_ = 0;  // a count of cases, since case numbers could overflow near the last ones
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  SweepResult result_;
};

}  // namespace

SweepResult sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress, unsigned workers,
                  const Limits& limits, const FailureLog& log) {
  if (workers == 0) workers = std::max(1u, std::thread::hardware_concurrency());
  Sweep all(seed, first, count, progress, limits, log);
  std::vector<std::thread> threads;
  for (unsigned n = 1; n < workers; ++n) threads.emplace_back([&] { all.work(); });
  all.work();
  for (std::thread& thread : threads) thread.join();
  return all.result();
}

}  // namespace cuflash::check
