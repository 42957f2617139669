#include "check/run/sweep.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "check/cases/random.h"
#include "check/run/cache_run.h"
#include "check/run/run.h"
#include "cuda/plan/head_sizes.h"
#include "error.h"

namespace cuflash::check {

constexpr size_t kFailuresShown = 10;

// The ranges of head sizes that share a kernel.
static std::vector<HeadSizes::Range> kernel_sizes() {
  std::vector<HeadSizes::Range> ranges;
  for (int64_t size = 1; size <= cuda::kLargestHeadSize; size = ranges.back().largest + 1)
    ranges.push_back({size, cuda::padded_head_size(size)});
  return ranges;
}

// Every other pair has equal sizes, cycling through the ranges; seeds start at different ranges.
Limits cuda_limits(uint64_t seed, size_t head_sizes) {
  const std::vector<HeadSizes::Range> ranges = kernel_sizes();
  Random random(seed);
  Limits limits{.device = Device::cuda};
  for (size_t n = 0; n < head_sizes; ++n) {
    const HeadSizes::Range& next = ranges[(seed + n / 2) % ranges.size()];
    const auto any = [&] { return ranges[random.below(ranges.size())]; };
    limits.head_sizes.push_back(n % 2 == 0 ? HeadSizes{next, next} : HeadSizes{any(), any()});
  }
  // Without options, with each option alone, and with some together.
  limits.option_sets.push_back({});
  const uint64_t alone = seed % 5, together = random.below(32) | 1u << seed / 5 % 5;
  for (const uint64_t set : {uint64_t{1} << alone, together})
    limits.option_sets.push_back({(set & 1) != 0, (set & 2) != 0, (set & 4) != 0, (set & 8) != 0, (set & 16) != 0});
  return limits;
}

Case sweep_case(uint64_t seed, uint64_t index, const Limits& limits) {
  constexpr uint32_t kPlainOnCuda = 4, kOptionsOnCuda = 3;  // one in this many
  Choices choices = Choices::of_seed(seed, index);
  if (limits.options) return draw_plain_case_with_options(choices, limits);
  if (limits.plain) return draw_plain_case(choices, limits);
  if (limits.device == Device::cuda && choices.chance(kPlainOnCuda)) return draw_plain_case(choices, limits);
  if (limits.device == Device::cuda && choices.chance(kOptionsOnCuda))
    return draw_plain_case_with_options(choices, limits);
  return draw_case(choices, limits);
}

CacheCase sweep_cache_case(uint64_t seed, uint64_t index, const Limits& limits) {
  Choices choices = Choices::of_seed(seed, index);
  return draw_cache_case(choices, limits);
}

std::string describe_sweep_case(uint64_t seed, uint64_t index, const Limits& limits) {
  return limits.cache ? describe(sweep_cache_case(seed, index, limits)) : describe(sweep_case(seed, index, limits));
}

std::string sweep_flags(const Limits& limits) {
  const char* kind = limits.cache ? " --cache" : limits.plain ? " --plain" : limits.options ? " --options" : "";
  if (limits.device != Device::cuda) return kind;
  return join(kind, " --device cuda --head-sizes ", limits.head_sizes.size());
}

namespace {

class Sweep {
 public:
  Sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress, const Limits& limits)
      : seed_(seed), first_(first), count_(count), progress_(progress), limits_(limits) {}

  void work() {
    while (!stopped_) {
      const uint64_t begun = begun_++;
      if (begun >= count_) return;
      const uint64_t index = first_ + begun;
      record(index, limits_.cache ? run_cache_case(sweep_cache_case(seed_, index, limits_))
                                  : run_case(sweep_case(seed_, index, limits_)));
    }
  }

  SweepResult result() {
    std::sort(result_.failures.begin(), result_.failures.end(),
              [](const SweepFailure& a, const SweepFailure& b) { return a.index < b.index; });
    return result_;
  }

 private:
  void record(uint64_t index, const std::string& failure) {
    const std::lock_guard lock(mutex_);
    ++result_.cases;
    if (!failure.empty()) {
      ++result_.failed;
      if (result_.failures.size() < kFailuresShown)
        result_.failures.push_back({index, failure,
                                    join("cuflash check --seed ", seed_, " --only ", index, sweep_flags(limits_)),
                                    describe_sweep_case(seed_, index, limits_)});
    }
    if (progress_ && !progress_(result_.cases, result_.failed)) stopped_ = true;
  }

  const uint64_t seed_, first_, count_;
  const Progress& progress_;
  const Limits& limits_;
  std::atomic<uint64_t> begun_ = 0;  // a count of cases, since case numbers could overflow near the last ones
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  SweepResult result_;
};

}  // namespace

SweepResult sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress, unsigned workers,
                  const Limits& limits) {
  if (workers == 0) workers = std::max(1u, std::thread::hardware_concurrency());
  Sweep all(seed, first, count, progress, limits);
  std::vector<std::thread> threads;
  for (unsigned n = 1; n < workers; ++n) threads.emplace_back([&] { all.work(); });
  all.work();
  for (std::thread& thread : threads) thread.join();
  return all.result();
}

}  // namespace cuflash::check
