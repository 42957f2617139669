#include "check/sweep.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "check/run.h"
#include "error.h"

namespace cuflash::check {

constexpr size_t kFailuresShown = 10;

Case sweep_case(uint64_t seed, uint64_t index) {
  Choices choices = Choices::of_seed(seed, index);
  return draw_case(choices);
}

namespace {

class Sweep {
 public:
  Sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress)
      : seed_(seed), end_(first + count), progress_(progress), next_(first) {}

  void work() {
    for (uint64_t index = next_++; index < end_; index = next_++) {
      const Case c = sweep_case(seed_, index);
      record(index, c, run_case(c));
    }
  }

  SweepResult result() {
    std::sort(result_.failures.begin(), result_.failures.end(),
              [](const SweepFailure& a, const SweepFailure& b) { return a.index < b.index; });
    return result_;
  }

 private:
  void record(uint64_t index, const Case& c, const std::string& failure) {
    const std::lock_guard lock(mutex_);
    ++result_.cases;
    if (!failure.empty()) {
      ++result_.failed;
      if (result_.failures.size() < kFailuresShown)
        result_.failures.push_back(
            {index, failure, join("cuflash check --seed ", seed_, " --only ", index), describe(c)});
    }
    if (progress_) progress_(result_.cases, result_.failed);
  }

  const uint64_t seed_, end_;
  const Progress& progress_;
  std::atomic<uint64_t> next_;
  std::mutex mutex_;
  SweepResult result_;
};

}  // namespace

SweepResult sweep(uint64_t seed, uint64_t first, uint64_t count, const Progress& progress, unsigned workers) {
  if (workers == 0) workers = std::max(1u, std::thread::hardware_concurrency());
  Sweep all(seed, first, count, progress);
  std::vector<std::thread> threads;
  for (unsigned n = 1; n < workers; ++n) threads.emplace_back([&] { all.work(); });
  all.work();
  for (std::thread& thread : threads) thread.join();
  return all.result();
}

}  // namespace cuflash::check
